"""Faults on purpose, each seen by what hostmesh makes of it."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import hostmesh as hm
from hostmesh._faults import Fault
from hostmesh.testing import FaultError, fault, run

pytestmark = pytest.mark.private_names  # who strays is told by the coordination service


def _loop(kind: str, at: str, timeout: float = 3.0) -> str:
    """Some steps, one of whose processes strays; what each process makes of it."""
    # A channel of its own: after a fault that nobody is told of, the usual one is out of step.
    with hm.config.set(timeout=timeout), hm.channel(f"{kind} {at}"), fault(kind, 1, at):
        began = time.monotonic()
        try:
            for step in range(4):
                hm.should_stop(step)
                found = hm.allgather({"a": np.arange(3.0)})["a"]
                hm.assert_equal(found)
                if not np.array_equal(found[0], found[1]):
                    return f"step {step}: {found.tolist()}"
                hm.barrier("end of step")
        except (FaultError, hm.HostmeshError) as error:
            return f"{type(error).__name__} in step {step}: {error}"
        return f"{time.monotonic() - began:.2f}"


def launched(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A run of `hostmesh run` that has ended."""
    command = [sys.executable, "-c", "from hostmesh._cli import main; main()", "run", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_an_error_between_calls():
    found = run(_loop, 3, 1, ("error", "step=2"))
    assert found[1] == "FaultError in step 2: error:1@step=2"
    for other in (found[0], found[2]):
        assert other.startswith("StragglerError in step 2")
        assert "process 1 did not come" in other


def test_an_error_in_a_call():
    one, two, three = run(_loop, 3, 1, ("error", "call=barrier"))
    assert two == "FaultError in step 0: error:1@call=barrier"
    for other in (one, three):
        assert other.startswith("ClusterError in step 0: barrier 'end of step'")
        assert "process 1" in other
        assert "FaultError" in other


def test_another_order():
    for found in run(_loop, 3, 1, ("order", "call=assert_equal")):
        assert found.startswith("DivergenceError in step 0")
        assert "process 1: barrier 'a fault on purpose" in found


def test_another_shape():
    for found in run(_loop, 3, 1, ("shape", "step=1")):
        assert found.startswith("DivergenceError in step 1")
        assert re.search(r"process 1: allgather.*float64\[4\]", found)


def test_another_value():
    for found in run(_loop, 2, 1, ("value", "step=3")):
        assert found.startswith("step 3: [[0.0, 1.0, 2.0], [0.0, 1.0, ")
        assert not found.endswith(" 2.0]]")


def test_slow():
    for found in run(_loop, 2, 1, ("slow=0.3", "step=2")):
        assert 0.6 < float(found) < 6


def test_malformed():
    for text in ("stop", "fly:1@step=3", "stop=2:1@step=3", "stop:x@step=3", "stop:1@soon"):
        with pytest.raises(hm.SpecError, match="KIND:PROCESS@WHEN"):
            Fault.parse(text)


@pytest.mark.parametrize(("kind", "status"), [("kill", 137), ("exit", 3)])
def test_from_the_command_line(tmp_path: Path, kind: str, status: int):
    program = tmp_path / "program.py"
    program.write_text(
        "import hostmesh as hm\n"
        "hm.initialize()\n"
        "for step in range(100):\n"
        "    hm.should_stop(step)\n"
        "    hm.barrier('step')\n"
    )
    done = launched("--fault", f"{kind}:1@step=5", str(program))
    assert done.returncode == status, done.stderr
    assert f"process 1 strays on purpose: {kind}" in done.stdout
    assert "process 1 of 2 failed first" in done.stderr


@pytest.mark.parametrize(("at", "struck"), [("step=5", True), ("step=99", False)])
def test_a_fault_that_never_strikes_is_told_of(tmp_path: Path, at: str, struck: bool):
    program = tmp_path / "program.py"
    program.write_text(
        "import hostmesh as hm\n"
        "hm.initialize()\n"
        "for step in range(10):\n"
        "    hm.watchdog.step(step)  # no watchdog runs\n"
    )
    done = launched("-n", "2", "--fault", f"exit:1@{at}", str(program))
    told = done.stdout + done.stderr
    assert done.returncode == (3 if struck else 0), told
    assert ("strays on purpose" in told) == struck
    assert ("exit:1@step=99 never struck: process 1 marked steps up to 9" in told) != (struck), told


def test_a_block_whose_fault_never_struck_warns():
    with (
        pytest.warns(
            UserWarning,
            match=r"kill:0@call=barrier never struck: process 0 marked no step .* made 1 agreed",
        ),
        fault("kill", 0, "call=barrier"),
    ):
        hm.same_choice(1)
    with fault("kill", 1, "call=barrier"):  # another process's: nothing is known here
        pass


def test_a_fault_of_no_process_is_refused(tmp_path: Path):
    (tmp_path / "program.py").touch()
    done = launched("-n", "2", "--fault", "kill:2@step=5", str(tmp_path / "program.py"))
    assert done.returncode == 2
    assert "process 2 of 2, which are 0 to 1" in done.stderr
