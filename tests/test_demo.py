"""`hostmesh demo` as a user runs it, and that it would say so if the losses did not agree."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from hostmesh import _demo, _run
from hostmesh._demo_train import MARK, Job, own_rows


def demo(*arguments: str) -> str:
    command = [sys.executable, "-c", "from hostmesh._cli import main; main()", "demo", *arguments]
    done = subprocess.run(
        command,
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_training(output: str, name: str, steps: int) -> None:
    assert f"{name}: step {steps}/{steps}, loss " in output
    assert f"1 process, all data: step {steps}/{steps}, loss " in output
    spread, single = re.findall(r"Test accuracy: ([\d.]+)%", output)
    assert spread == single
    assert float(spread) > 85
    assert f"Feeder of process 0: {steps} batches, " in output
    difference = re.search(r"The losses agree: largest relative difference (\S+) ", output)
    assert difference is not None
    assert float(difference[1]) <= 1e-5


def test_block_mesh() -> None:
    output = demo("--plain", "--steps", "20")
    assert output.isascii()
    assert "\x1b" not in output
    assert "4 processes x 2 devices, block mesh data=4 x model=2" in output
    rows = re.findall(r"^\| +(\d) \| +(\S+) \| +(\S+) \| +(\d+) \| +(\S+) \|", output, re.MULTILINE)
    assert rows == [
        ("0", "0-1", "0-63", "320", "0-255"),
        ("1", "2-3", "64-127", "320", "0-255"),
        ("2", "4-5", "128-191", "320", "0-255"),
        ("3", "6-7", "192-255", "320", "0-255"),
    ]
    check_training(output, "4 processes", 20)
    assert re.search(r"jax.make_array_from_process_local_data +[\d.]+ ms", output)
    assert re.search(r"hostmesh.to_global +[\d.]+ ms", output)


def test_interleaved_mesh() -> None:
    output = demo("--mesh", "interleaved", "--processes", "2", "--devices", "2", "--steps", "20")
    assert "2 processes x 2 devices, interleaved mesh data=4 x model=1" in output
    assert " 0-63 128-191 │" in output
    assert " 64-127 192-255 │" in output
    check_training(output, "2 processes", 20)


def test_mesh_that_jax_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Process 0 holds chunks of a diagonal: positions 0 and 3 of a 3 x 2 mesh.

    The sanitizer looks at the values of chunks that two processes hold: they once differed here.
    """
    monkeypatch.setenv("HOSTMESH_SANITIZE", "1")
    output = demo("--mesh", "interleaved", "--processes", "3", "--devices", "2", "--steps", "20")
    assert "jax.make_array_from_process_local_data refuses this mesh" in output
    check_training(output, "3 processes", 20)


@pytest.mark.parametrize("order", ["block", "interleaved"])
@pytest.mark.parametrize("processes", [1, 2, 3, 4, 16])
@pytest.mark.parametrize("devices", [1, 2, 3, 16])
def test_every_row_is_held_and_by_some_only(order: str, processes: int, devices: int) -> None:
    job = Job("", processes, devices, order, 1)
    topology, batch = job.topology(), job.batch()
    held = [own_rows(topology, batch, process) for process in range(processes)]
    assert np.array_equal(np.unique(np.concatenate(held)), np.arange(batch))
    if processes > 1:
        assert max(map(len, held)) < batch


def run_with(monkeypatch: pytest.MonkeyPatch, spread: list[float], single: list[float]) -> str:
    """The demo's output and exit status where the two trainings tell these losses."""

    def run(
        command: list[str], devices: list[int], *, timeout: float, output: io.BytesIO
    ) -> object:
        losses = spread if len(devices) > 1 else single
        output.write(b"[1] a warning\n")
        for loss in losses:
            output.write(f"[0] torn {MARK}{json.dumps({'loss': loss})}\n".encode())
        told = {"correct": 500, "milliseconds": {"jax": 9.0, "hostmesh": 3.0}}
        output.write(f"[0] {MARK}{json.dumps(told)}\n".encode())
        return _run.Result((), None, 0, 1.0)

    monkeypatch.setattr(_run, "run", run)
    done = CliRunner().invoke(_demo.command, ["--steps", str(len(spread)), "--plain"])
    return f"{done.output}exit {done.exit_code}"


def test_losses_that_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    output = run_with(monkeypatch, [2.0, 1.000009], [2.0, 1.0])
    assert output.endswith(
        "The losses agree: largest relative difference 9.0e-06 (limit 1e-05)\nexit 0"
    )
    assert output.count("[1] a warning") == 2


@pytest.mark.parametrize("off", [1.00002, float("nan")])
def test_losses_that_disagree(monkeypatch: pytest.MonkeyPatch, off: float) -> None:
    output = run_with(monkeypatch, [off, 0.5], [1.0, 0.5])
    assert "The losses DISAGREE: largest relative difference " in output
    assert output.endswith("exit 1")


def test_a_training_that_fails(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Job, "command", lambda *_, **__: [sys.executable, "-c", "1 / 0"])
    with pytest.raises(SystemExit) as ended:
        _demo.command.main(["--processes", "2"], standalone_mode=False)
    assert ended.value.code == 1
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    done = CliRunner().invoke(_demo.command, [])
    assert done.exit_code == 1
    assert 'pip install "hostmesh[demo]"' in done.output
