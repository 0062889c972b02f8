"""`hostmesh plan`: what it shows, its numbers for programs, and what it refuses."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner, Result

from hostmesh import _cli

BASE = {"--mesh": "data=4,model=2", "--processes": "4", "--spec": "data,None", "--shape": "64,128"}


def planned(*flags: str, **changes: str) -> Result:
    options = BASE | {f"--{name}": value for name, value in changes.items()}
    arguments = [word for pair in options.items() for word in pair]
    return CliRunner().invoke(_cli.main, ["plan", *arguments, *flags])


def test_an_interleaved_mesh() -> None:
    result = planned(order="interleaved", process="2")
    assert result.exit_code == 0, result.output
    for words in (
        "Process 2's local array: float32 (32, 128)",
        "Each of processes 0-3 passes (32, 128) to hm.to_global.",
        "Processes 0 and 1 hold the same 2 chunks, and must pass equal values of them.",
        "8,192 on each device, 16,384 on process 2, 65,536 on all devices (array 32,768, 2 copies)",
        "form one rectangle of the mesh; here p0 has d0 and d4, with a gap. hostmesh takes it.",
        "x = hm.to_global(local, mesh, P('data'))  # local.shape == (32, 128), x.shape == (64, 128)",
    ):
        assert " ".join(words.split()) in " ".join(result.output.split())
    picture_and_words, _, code = result.output.rpartition("\n\n")
    assert max(map(len, picture_and_words.splitlines())) <= 80
    assert code.startswith("import hostmesh as hm")


def test_where_no_process_is_given_it_says_how_to_see_one() -> None:
    said = "\n--process 0 shows which part of the array process 0 passes.\n"
    assert said in planned().output
    assert "shows which part" not in planned(process="1").output


def test_numbers_for_programs(tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text("[3, 3, 2, 2, 1, 1, 0, 0]")
    result = planned("--json", order=str(tmp_path / "order.json"), process="3", dtype="bf16")
    facts = json.loads(result.output)
    assert facts["process_indices"] == [3, 3, 2, 2, 1, 1, 0, 0]
    assert facts["bytes"] == {"device": 4096, "process": 8192, "all": 32768}
    assert facts["jax_refuses_process"] is None
    assert [at["device"] for at in facts["placements"]] == [0, 1]
    assert facts["placements"][0]["global"] == [[0, 16], [0, 128]]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mesh": "data"}, "given: 'data'"),
        ({"processes": "3"}, "8 is not a positive multiple of 3"),
        ({"spec": "data;None"}, "given: 'data;None'"),
        ({"spec": "datum"}, "'datum' is no axis of the mesh"),
        ({"shape": "63,128"}, "its size 63 must be a multiple of 4"),
        ({"shape": "a"}, "given: 'a'"),
        ({"dtype": "float7"}, "given: 'float7'"),
        ({"process": "4"}, "with --processes 4 they are numbered 0 to 3"),
        ({"order": "nowhere"}, "'nowhere': "),
        ({"svg": "no/such/folder.svg"}, "'no/such/folder.svg': No such file"),
        ({"html": "no/such/folder.html"}, "'no/such/folder.html': No such file"),
    ],
)
def test_what_cannot_be_is_refused_in_four_parts(changes: dict[str, str], words: str) -> None:
    result = planned(**changes)
    assert result.exit_code == 2
    assert words in result.output
    assert all(f"\n  {part}:" in result.output for part in ("given", "rule", "do"))
    assert "Traceback" not in result.output


@pytest.mark.parametrize("order", ["block", "interleaved", [3, 0, 1, 2, 2, 1, 0, 3]])
def test_the_code_places_each_process_where_the_plan_does(
    order: str | list[int], tmp_path: Path
) -> None:
    """Its expression on stand-ins for `jax.devices()`: their numbers, two to a process."""
    path = tmp_path / "order.json"
    path.write_text(json.dumps(order))
    facts = json.loads(
        planned("--json", order=order if isinstance(order, str) else str(path)).output
    )
    expression = facts["code"][-2].removeprefix("mesh = Mesh(").rpartition(", (")[0]
    jax = SimpleNamespace(devices=lambda: list(range(8)))
    devices = eval(expression, {"np": np, "jax": jax, "owners": facts["process_indices"]})
    assert devices.shape == (4, 2)
    assert (devices.ravel() // 2).tolist() == facts["process_indices"]
    for process in range(4):  # a process's own devices in their own order
        assert devices[devices // 2 == process].tolist() == [2 * process, 2 * process + 1]


def test_the_documented_picture_is_what_is_drawn() -> None:
    page = Path(__file__).resolve().parent.parent / "docs" / "pictures.md"
    block = page.read_text("utf-8").split("```console\n")[1].split("\n```")[0]
    command, _, shown = block.partition("\n")
    result = CliRunner().invoke(_cli.main, command.split()[2:])
    assert result.output.rstrip() == shown


def test_the_documented_svgs_are_what_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = Path(__file__).resolve().parent.parent / "docs"
    lines = (docs / "pictures.md").read_text("utf-8").splitlines()
    commands = [
        shlex.split(line) for line in lines if re.match(r"\$ hostmesh plan .* --svg ", line)
    ]
    monkeypatch.chdir(tmp_path)
    for command in commands:
        assert CliRunner().invoke(_cli.main, command[2:]).exit_code == 0
    drawn = {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()}
    stored = {path.name: path.read_text("utf-8") for path in (docs / "pictures").glob("*.svg")}
    assert drawn == stored
    assert len(stored) == 2
