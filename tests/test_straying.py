"""Processes that stray, each in bounded time and with the right names on every process."""

from __future__ import annotations

import textwrap
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import processes
from hostmesh._cluster import members

FOUR = pytest.mark.multiprocess(processes=4, devices=1)


def _error(call: Callable[[], Any], kind: type[Exception], *parts: str, within: float) -> str:
    """Makes a call that must raise, soon enough and with all parts in its message."""
    began = time.monotonic()
    with pytest.raises(kind) as caught:
        call()
    assert time.monotonic() - began < within
    text = str(caught.value)
    for part in parts:
        assert part in text, f"{part!r} is not in {text}"
    return text


@FOUR
def test_another_call_is_a_divergence_on_all() -> None:
    import jax
    import numpy as np

    import hostmesh as hm

    me = jax.process_index()
    stray = me == 3
    one, two = np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32)
    cases: list[tuple[Callable[[], Any], Callable[[], Any], str, str]] = [
        # another operation, name, shape, dtype, tree
        (
            lambda: hm.allgather(one),
            lambda: hm.barrier("x"),
            "allgather of float32[2,3]",
            "barrier 'x'",
        ),
        (
            lambda: hm.barrier("save"),
            lambda: hm.barrier("load"),
            "barrier 'save'",
            "barrier 'load'",
        ),
        (lambda: hm.allgather(one), lambda: hm.allgather(two), "float32[2,3]", "float32[3,2]"),
        (
            lambda: hm.allgather(one),
            lambda: hm.allgather(one.astype(np.int8)),
            "float32[2,3]",
            "int8[2,3]",
        ),
        (
            lambda: hm.allgather({"a": one}),
            lambda: hm.allgather({"b": one}),
            "{'a': float32[2,3]}",
            "{'b': float32[2,3]}",
        ),
        # a source that is another
        (
            lambda: hm.broadcast(one, source=0),
            lambda: hm.broadcast(one, source=1),
            "broadcast(source=0)",
            "broadcast(source=1)",
        ),
    ]
    for usual, strays, theirs, its in cases:
        text = _error(strays if stray else usual, hm.DivergenceError, within=5)
        common, _, straying = text.partition("; process 3: ")
        assert theirs in common.partition("processes 0-2: ")[2], text
        assert its in straying, text
        assert ("sizes may differ" in text) == (its == "float32[3,2]"), text  # these share a line
        assert "test_straying.py:" in text
        assert f"on process {me}" in text
    # The channel goes on as if nothing had been.
    assert hm.allgather(me).tolist() == [0, 1, 2, 3]


@FOUR
def test_order_missing_and_extra_calls() -> None:
    import jax
    import numpy as np

    import hostmesh as hm

    me = jax.process_index()
    # Two calls in another order: both rounds diverge.
    names = ("b", "a") if me == 2 else ("a", "b")
    for name in names:
        _error(
            lambda name=name: hm.barrier(name),
            hm.DivergenceError,
            "process 2: barrier",
            "processes 0-1, 3: barrier",
            within=5,
        )
    # One call missing on process 3: found at the next call, with both lines.
    if me != 3:
        _error(
            lambda: hm.barrier("every step"),
            hm.DivergenceError,
            "processes 0-2: barrier 'every step'",
            "process 3: barrier 'end'",
            within=5,
        )
    if me == 3:
        _error(lambda: hm.barrier("end"), hm.DivergenceError, "process 3: barrier 'end'", within=5)
    # The classic: an extra mean of the same kind on process 0 only. Both lines are named.
    x = np.float32(1)
    if me == 0:
        text = _error(lambda: hm.allgather(x), hm.DivergenceError, "process 0: allgather", within=5)
    else:
        text = _error(
            lambda: hm.allgather(x), hm.DivergenceError, "processes 1-3: allgather", within=5
        )
    lines = {word.strip(";,") for word in text.split() if "test_straying.py:" in word}
    assert len(lines) == 2, text
    # The same barrier name twice in a row is two barriers.
    hm.barrier("same")
    hm.barrier("same")
    # One more on process 1: found as well.
    if me == 1:
        _error(
            lambda: hm.barrier("same"), hm.DivergenceError, "process 1: barrier 'same'", within=5
        )
    else:
        _error(
            lambda: hm.barrier("next"), hm.DivergenceError, "process 1: barrier 'same'", within=5
        )
    assert hm.allgather(me).tolist() == [0, 1, 2, 3]


@pytest.mark.private_names
@FOUR
def test_late_and_failed_processes_are_named() -> None:
    import jax
    import numpy as np

    import hostmesh as hm

    me = jax.process_index()
    # One does not come, or comes late and reads that the others have given up; process 0 decides
    # elsewhere who is late.
    for late, others in ((1, "processes 0, 2-3"), (0, "processes 1-3")):
        missing = f"process {late} did not come within 1 s"
        if me == late:
            time.sleep(2.5)
        parts = [missing] if me == late else [missing, f"{others}: barrier 'b' at"]
        _error(lambda: hm.barrier("b", timeout=1), hm.StragglerError, *parts, within=4)
        hm.barrier("all here again", timeout=20)
    # A failure inside, before anything is agreed: each names it, at once.
    for bad in (2, 0):
        value = "a string" if me == bad else np.float32(1)
        text = _error(
            lambda value=value: hm.allgather(value, timeout=20),
            hm.HostmeshError,
            "broadcast_object",
            within=6,
        )
        if me != bad:
            assert f"process {bad}: allgather" in text, text
            assert "failed: ShapeError" in text, text
    # A slow process within the time-out: works.
    if me == 3:
        time.sleep(1.5)
    hm.barrier("slow", timeout=20)
    # Time-outs set differently: whose time is up first decides for all.
    limits = {0: 30, 1: 30, 2: 1, 3: 30}
    if me == 3:
        time.sleep(3)
    _error(
        lambda: hm.barrier("d", timeout=limits[me]),
        hm.StragglerError,
        "process 3 did not come within 1 s",
        within=5,
    )
    # A source that does not exist: bad input everywhere, no message.
    _error(
        lambda: hm.broadcast(np.zeros(3), source=9),
        hm.SpecError,
        "process 9",
        "processes 0-3 take part",
        within=2,
    )
    assert hm.allgather(me).tolist() == [0, 1, 2, 3]


@pytest.mark.private_names
@FOUR
def test_subsets_and_threads() -> None:
    import jax

    import hostmesh as hm

    me = jax.process_index()
    # A subset that lacks a member: process 1 calls with [0, 1, 2], the others with [0, 2].
    if me == 1:
        _error(
            lambda: hm.barrier("s", processes=[0, 1, 2], timeout=1.5),
            hm.StragglerError,
            "processes 0, 2 did not come",
            within=5,
        )
    elif me in (0, 2):
        hm.barrier("s", processes=[0, 2], timeout=5)
    else:
        _error(lambda: hm.barrier("s", processes=[0, 2]), hm.SpecError, "process 3", within=1)
    hm.barrier("together again", timeout=20)
    # Two threads crossed: what is called in the other thread's channel is told.
    found: dict[str, str] = {}

    def work(name: str) -> None:
        with hm.channel(name):
            other = {"left": "right", "right": "left"}[name]
            try:
                hm.barrier(other if me == 3 else name, timeout=10)
            except hm.DivergenceError as error:
                found[name] = str(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("left", "right")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(15)
    for name, other in (("left", "right"), ("right", "left")):
        assert f"processes 0-2: barrier '{name}'" in found[name]
        assert f"process 3: barrier '{other}'" in found[name]
    # Who waits on another channel is told where.
    if me == 2:
        with hm.channel("elsewhere"):
            _error(
                lambda: hm.barrier("evaluate", timeout=2.5),
                hm.StragglerError,
                "processes 0-1, 3 did not come",
                within=6,
            )
        time.sleep(1)
        _error(lambda: hm.barrier("train", timeout=1), hm.StragglerError, "process 2", within=3)
    else:
        time.sleep(0.5)
        _error(
            lambda: hm.barrier("train", timeout=1),
            hm.StragglerError,
            "process 2 did not come",
            "process 2 waits in barrier 'evaluate'",
            "channel 'elsewhere'",
            within=4,
        )
    hm.barrier("end", timeout=20)


_PROGRAM = """
import os, signal, sys, time
import hostmesh as hm
hm.initialize()
import jax
me = jax.process_index()
hm.barrier("ready", timeout=60)
if me == 3:
    print("ready", flush=True)
    {stray}
else:
    hm.barrier("step", timeout=3)
"""


@pytest.mark.private_names
@pytest.mark.parametrize(
    "stray",
    [
        "sys.exit(3)",
        "os._exit(0)",
        "os.kill(os.getpid(), signal.SIGKILL)",
        "os.kill(os.getpid(), signal.SIGSTOP)",
    ],
)
def test_a_process_that_is_gone_or_stuck_is_named(stray: str, tmp_path: Any) -> None:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(_PROGRAM.format(stray=stray)))
    with processes.started(script, members([1, 1, 1, 1])) as started:
        outputs = [process.communicate(timeout=60)[0] for process in started[:3]]
    for number, output in enumerate(outputs):
        assert "process 3 did not come within 3 s" in output, output
        assert "came: processes 0-2: barrier 'step' at" in output, output
        assert f"on process {number}" in output, output
