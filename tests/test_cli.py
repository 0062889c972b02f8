"""The command line: what it refuses, what it passes on, and that help imports no command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import hostmesh
from hostmesh import _cli, _outcome, _run


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "script.py"
    path.write_text("import os, sys; print(os.environ['HOSTMESH_DEVICES'], sys.argv[1:])")
    return str(path)


def hostmesh_run(*args: str) -> Result:
    return CliRunner().invoke(_cli.main, ["run", *args])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["nowhere.py"], "Invalid value for SCRIPT: 'nowhere.py' does not exist"),
        (["-n", "0", "SCRIPT"], "'-n': 0 is not in the range x>=1"),
        (
            ["-n", "3", "-d", "2,1", "SCRIPT"],
            "2 numbers of devices for 3 processes; give one, or 3",
        ),
        (["-d", "2,0", "SCRIPT"], "'2,0': each process has at least 1 device"),
        (["-d", "two", "SCRIPT"], "'two' is no number, nor numbers with commas between"),
        (["--timeout", "0", "SCRIPT"], "'--timeout': 0.0 is not in the range x>0"),
        (["--port", "70000", "SCRIPT"], "'--port': 70000 is not in the range 1<=x<=65535"),
        ([], "Missing argument 'SCRIPT'"),
    ],
)
def test_what_cannot_be_run_is_refused(script: str, args: list[str], words: str):
    result = hostmesh_run(*(script if arg == "SCRIPT" else arg for arg in args))
    assert result.exit_code == 2
    assert words in result.output


@pytest.mark.parametrize(
    ("args", "devices"),
    [
        ([], [1, 1]),
        (["-n", "3"], [1, 1, 1]),
        (["-d", "2"], [2, 2]),
        (["-n", "3", "-d", "2"], [2, 2, 2]),
        (["-d", "2,2,1,1"], [2, 2, 1, 1]),
        (["-n", "2", "-d", "3,1"], [3, 1]),
    ],
)
def test_processes_and_devices(
    script: str, args: list[str], devices: list[int], monkeypatch: pytest.MonkeyPatch
):
    seen: list[Any] = []

    def run(*args: Any, **options: Any) -> _run.Result:
        seen.append((*args, options))
        return _run.Result((), None, 0, 0.0)

    monkeypatch.setattr(_run, "run", run)
    result = hostmesh_run(
        *args, "--timeout", "7", "--port", "1234", "--grace", "9", script, "-n", "9", "--flag"
    )
    assert result.exit_code == 0, result.output
    options = {"timeout": 7.0, "port": 1234, "hosts": None, "verbose": False}
    options |= {"grace": 9.0, "environment": {}}
    command = [sys.executable, script, "-n", "9", "--flag"]  # its own options, not ours
    assert [(c, list(d), o) for c, d, o in seen] == [(command, devices, options)]


def test_this_command_is_run_in_each_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostmesh").mkdir()  # as in a checkout's src
    result = hostmesh_run("--", "hostmesh", "--version")
    lines = [f"[{p}] hostmesh {hostmesh.__version__}" for p in (0, 1)]
    assert sorted(result.output.splitlines()) == lines


def test_a_module_is_run_as_python_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "part.py").write_text("import sys; print(__name__, sys.argv[1:])")
    result = hostmesh_run("-m", "package.part", "-m", "-n", "3")
    assert sorted(result.output.splitlines()) == [
        f"[{p}] __main__ ['-m', '-n', '3']" for p in (0, 1)
    ]
    assert result.exit_code == 0


def test_the_installed_command_has_the_status_and_the_summary(tmp_path: Path):
    (tmp_path / "script.py").write_text("raise ValueError('too bad')")
    command = [str(Path(sys.executable).parent / "hostmesh"), "run", "-n", "1", "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "[0] ValueError: too bad"
    assert done.stderr.startswith("hostmesh run: process 0 of 1 failed first: exit status 1 after")
    assert done.stderr.splitlines()[-1] == "  ValueError: too bad"


def test_a_reader_that_leaves_is_no_error(tmp_path: Path):
    (tmp_path / "script.py").write_text("while True: print('line')")
    command = [str(Path(sys.executable).parent / "hostmesh"), "run", "script.py"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as launcher:
        assert launcher.stdout is not None
        assert launcher.stderr is not None
        launcher.stdout.readline()
        launcher.stdout.close()
        assert launcher.wait(60) == _outcome.UNREAD
        assert launcher.stderr.read() == b""


def test_version():
    result = CliRunner().invoke(_cli.main, ["--version"], prog_name="hostmesh")
    assert result.output == f"hostmesh {hostmesh.__version__}\n"


def test_help_names_every_command_and_imports_none():
    program = """
import sys
from hostmesh._cli import _ELSEWHERE, main
main(["--help"], standalone_mode=False)
modules = ["hostmesh._run", *(place.partition(":")[0] for place, _ in _ELSEWHERE.values())]
print("imported:", [name for name in modules if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    commands, _, imported = done.stdout.partition("Commands:")[2].partition("imported:")
    assert imported.strip() == "[]", done.stderr
    assert [line.split()[0] for line in commands.splitlines() if line] == [
        "bench",
        "demo",
        "doctor",
        "plan",
        "run",
    ]


def test_every_command_elsewhere_is_there():
    for name in _cli._ELSEWHERE:
        result = CliRunner().invoke(_cli.main, [name, "--help"])
        assert result.exit_code == 0, result.output
