"""README.md's examples do what it shows."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)
FIRST, CONVERT, FEED, TEST = (text for language, text in BLOCKS if language == "python")
CONSOLE = next(text for language, text in BLOCKS if language == "console")


def hostmesh_run(folder: Path, code: str, arguments: list[str]) -> list[str]:
    """The sorted lines that `code` prints as example.py under `hostmesh run`.

    Without those of Gloo, which writes to standard output as well when it connects.
    """
    (folder / "example.py").write_text(code)
    command = [sys.executable, "-c", "from hostmesh._cli import main; main()", "run", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    return sorted(line for line in lines if "Gloo" not in line and line[3:].strip())


def test_first_example(tmp_path: Path) -> None:
    command, *shown = CONSOLE.splitlines()
    assert command.startswith("$ hostmesh run ")
    assert hostmesh_run(tmp_path, FIRST, command.split()[3:]) == sorted(shown)


def test_picture_has_the_values_of_the_first_example() -> None:
    """Of each process: what it gives, what its devices hold, and what it gets back."""
    picture = README.read_text("utf-8").split("```")[1]
    drawn = [list(map(int, values.split())) for values in re.findall(r"\[([\d ]+)\]", picture)]
    given, halves, back = drawn[:4], drawn[4:12], drawn[12:]
    assert given == [[p * i for i in range(4)] for p in range(4)]
    assert [a + b for a, b in zip(halves[::2], halves[1::2], strict=True)] == given
    assert back == [[10 * i for i in values] for values in given]


def test_conversion_on_an_interleaved_mesh(tmp_path: Path) -> None:
    lines = hostmesh_run(tmp_path, CONVERT, ["-n", "4", "-d", "2", "example.py"])
    assert lines[:2] == ["[0] (64, 8)", "[0] {'w': (16, 8), 'x': (128, 16)}"]
    assert len(lines) == 8


def test_feeding_uneven_processes(tmp_path: Path) -> None:
    lines = hostmesh_run(tmp_path, FEED, ["-n", "4", "-d", "2", "example.py"])
    lines = [line for line in lines if line.endswith("86 86 3")]
    assert [line[:3] for line in lines] == [f"[{process}]" for process in range(4)]


def test_plan() -> None:
    failed, tried = doctest.testfile(str(README), module_relative=False)
    assert (failed, tried > 0) == (0, True)


def test_marked_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TEST)
    pytester.runpytest_subprocess().assert_outcomes(passed=1)
