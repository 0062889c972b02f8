"""A notice to one process becomes one step at which all stop."""

from __future__ import annotations

import functools
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import hostmesh
from hostmesh import _preemption
from hostmesh.testing import run

_NUMBERS = iter(range(1, 1000))


@pytest.fixture(autouse=True)
def _own_signal():  # pyright: ignore[reportUnusedFunction]
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def _train(number: int, seed: int, kind: str, folder: str = "") -> tuple:
    """Steps in uneven time, with a sum over processes in each; one process gets a notice midway."""
    import jax

    _preemption.forget(number)
    draw = random.Random(f"{seed} {jax.process_index()}")
    whose, when = (f := random.Random(seed)).randrange(jax.process_count()), f.randrange(40)
    called: list[hostmesh.Stop] = []
    hostmesh.on_preemption(called.append)
    for step in range(10**6):
        if hostmesh.should_stop(step):
            return step, when, whose, called, hostmesh.stop_reason()
        if step == when and jax.process_index() == whose:
            if kind == "signal":
                os.kill(os.getpid(), signal.SIGTERM)
            elif kind == "request":
                threading.Thread(target=hostmesh.request_stop, args=("enough",)).start()
            else:
                Path(folder, "stop").touch()
        time.sleep(draw.random() / 100)
        if step % 5 == 0:
            assert hostmesh.reduce(1) == jax.process_count()
    raise AssertionError("it was never told to stop")


@pytest.mark.private_names
def test_all_stop_at_one_step_after_a_signal_to_any():
    rounds = int(os.environ.get("HOSTMESH_TEST_KILLS", "4"))
    numbers = [next(_NUMBERS) for _ in range(rounds)]
    for seed, number in enumerate(numbers):
        found = run(_train, 4, 2, (number, seed, "signal"), timeout=60)
        (step,) = {each[0] for each in found}
        when, whose = found[0][1:3]
        assert step > when
        for _, _, _, called, reason in found:
            assert reason == hostmesh.Stop("signal", whose, "SIGTERM")
            assert called == [reason]


@pytest.mark.private_names
@pytest.mark.parametrize("kind", ["request", "file"])
def test_other_notices(kind: str, tmp_path: Path):
    env = {"HOSTMESH_STOP_FILE": str(tmp_path / "stop")}
    found = run(_train, 2, 1, (next(_NUMBERS), 0, kind, str(tmp_path)), timeout=60, env=env)
    assert len({each[0] for each in found}) == 1
    # Two processes look at one file: either may see it first.
    assert {each[4].kind for each in found} == {kind}


def test_nothing_is_sent_without_a_notice():
    _preemption.forget(0)
    assert not any(hostmesh.should_stop(step) for step in range(100))
    assert hostmesh.stop_reason() is None


def _quiet(number: int) -> list[str]:
    """What 1,000 calls send to the store."""
    from unittest import mock

    from hostmesh import _jax

    _preemption.forget(number)
    hostmesh.should_stop()
    hostmesh.barrier("all have begun")
    time.sleep(0.3)
    sent: list[str] = []
    names = ("set_once", "get", "peek", "list", "meet", "delete")
    with mock.patch.multiple(
        _jax.Store, **{n: functools.partial(lambda n, *_: sent.append(n), n) for n in names}
    ):
        for step in range(1000):
            assert not hostmesh.should_stop(step)
    hostmesh.barrier("all have ended")
    return sent


@pytest.mark.private_names
def test_a_call_without_a_notice_sends_nothing():
    assert run(_quiet, 4, 2, (next(_NUMBERS),), timeout=60) == [[]] * 4


def _unlike(number: int) -> str:
    import jax

    _preemption.forget(number)
    me = jax.process_index()
    try:
        for step in range(10**6):
            hostmesh.should_stop(step + me)
            if step == 3 and me == 1:
                hostmesh.request_stop()
            time.sleep(0.01)
    except hostmesh.DivergenceError as error:
        return str(error)
    return ""


@pytest.mark.private_names
def test_other_steps_are_an_error_on_all():
    for message in run(_unlike, 2, 1, (next(_NUMBERS),), timeout=60):
        assert "process 0: should_stop(" in message
        assert "process 1: should_stop(" in message


def _by_jax(number: int) -> hostmesh.Stop | None:
    """The first call is no main thread's, which alone can take the signal: JAX's service has it."""
    import jax

    thread = threading.Thread(target=_preemption.forget, args=(number,))
    thread.start()
    thread.join()
    for step in range(10**6):
        if hostmesh.should_stop(step):
            return hostmesh.stop_reason()
        if step == 3 and jax.process_index() == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
    return None


@pytest.mark.private_names
def test_a_notice_to_jax_itself_counts():
    found = run(_by_jax, 2, 1, (next(_NUMBERS),), timeout=60, env={"NOTICE": "to JAX"})
    assert {stop.kind for stop in found if stop} == {"maintenance"}
    assert len(found) == 2


def test_alone_and_with_an_earlier_handler():
    got: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    _preemption.forget(0)
    assert not hostmesh.should_stop(0)
    os.kill(os.getpid(), signal.SIGTERM)
    assert hostmesh.should_stop(1)
    assert hostmesh.should_stop(2)
    assert got == [signal.SIGTERM]
    assert hostmesh.stop_reason() == hostmesh.Stop("signal", 0, "SIGTERM")


def test_an_ignored_signal_stays_ignored():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _preemption.forget(0)
    os.kill(os.getpid(), signal.SIGTERM)
    assert not hostmesh.should_stop(0)


def _example(
    state: Path, signal_after: float | None = None, processes: int = 4
) -> tuple[int, set[str], set[str]]:
    """Runs the example; a signal to its launcher that many seconds after it begins to train.

    Returns the status, the steps that it was saved at, and the last losses.
    """
    program = Path(__file__).parents[1] / "examples/resume.py"
    command = [sys.executable, "-m", "hostmesh", "run", "-n", f"{processes}", "--grace", "60"]
    with subprocess.Popen(
        [*command, str(program), str(state)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as launcher:
        assert launcher.stdout is not None
        lines: list[str] = []
        for raw in launcher.stdout:
            lines.append(line := raw.decode())
            if signal_after is not None and "trains from" in line:
                time.sleep(signal_after)
                launcher.send_signal(signal.SIGTERM)
                signal_after = None
    text = "".join(lines)
    return (
        launcher.returncode,
        set(re.findall(r"saved at step (\d+)", text)),
        set(re.findall(r"process \d: loss (\S+);", text)),
    )


@pytest.mark.private_names
def test_the_example_saves_and_resumes_to_the_same_loss(tmp_path: Path):
    """On as many processes to the same bits, and on other numbers of them but for rounding."""
    pytest.importorskip("grain")
    status, _, right = _example(tmp_path / "never.safetensors")
    assert status == 0
    assert len(right) == 1
    for number in range(int(os.environ.get("HOSTMESH_TEST_KILLS", "1"))):
        state = tmp_path / f"{number}.safetensors"
        status, saved, _ = _example(state, signal_after=random.Random(number).random())
        assert status == 0
        assert len(saved) == 1
        for processes in (4, 2):
            status, _, losses = _example(state, processes=processes)
            assert (status, len(losses)) == (0, 1)
            if processes == 4:
                assert losses == right
            else:
                assert float(*losses) == pytest.approx(float(*right), rel=1e-3)
