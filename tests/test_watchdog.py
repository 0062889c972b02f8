"""Faults in real processes: the watchdog names the process and the line, and all end or go on."""

from __future__ import annotations

import os
import re
import signal
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import processes
from hostmesh._cluster import members
from hostmesh._watch import _act, _files, _merge, _watchdog

FOUR = pytest.mark.multiprocess(processes=4, devices=1)


def _joined(said: list[str]) -> str:
    return " ".join("".join(said).replace("hostmesh: ", "").split())


def _hang(kind: str) -> None:
    if kind == "loop":
        sum(0 for _ in iter(int, 1))  # the loop
    lock = threading.Lock()
    lock.acquire()
    if kind == "lock":
        lock.acquire()  # the lock
    os.read(os.pipe()[0], 1)  # the read


def _watched(kind: str, me: int) -> None:
    import hostmesh as hm

    with hm.Watchdog(timeout=1.5, action="raise") as watchdog:
        watchdog.step(7)
        hm.barrier("all here")
        if me == 3:
            _hang(kind)
        hm.barrier("never", timeout=60)


def _line(mark: str) -> str:
    text = Path(__file__).read_text().splitlines()
    return f"test_watchdog.py:{1 + next(n for n, line in enumerate(text) if line.endswith(mark))}"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What watchdogs say, whose files lie in the test's folder."""
    texts: list[str] = []
    monkeypatch.setattr(_act, "say", texts.append)
    monkeypatch.setenv(_files.FOLDER, str(tmp_path))
    return texts


@pytest.mark.private_names
@FOUR
def test_who_hangs_is_named_and_all_raise(said: list[str], tmp_path: Path) -> None:
    import jax

    import hostmesh as hm

    me = jax.process_index()
    for kind in ("loop", "lock", "read"):
        said.clear()
        with (
            hm.channel(kind),
            pytest.raises(hm.StragglerError, match="process 3 of 4 has made no progress") as caught,
        ):
            _watched(kind, me)
        assert "time-out 1.5 s" in str(caught.value)
        if me == 0:
            text = _joined(said)
            assert f"process 3: step 7, at tests/{_line(f'# the {kind}')}" in text, text
            assert re.search(
                r"processes 0-2: step 7, wait in barrier 'never' at \S+:\d+, .* for process 3", text
            )
        else:
            assert not said
        with hm.channel(f"after {kind}"):
            hm.barrier("after", timeout=20)
    # Each has left its stacks and its timeline; read together, these tell who did not come.
    if me == 0:
        files = sorted(
            tmp_path.glob("*-process*/timeline.json"), key=lambda path: path.stat().st_mtime
        )
        told = " ".join(_merge.merge(files[-4:]).sentences)
        assert re.search(r"processes 0-2: step 7, waited in barrier 'never' at \S+:\d+, then", told)
        assert "process 3: step 7, last agreed call: barrier 'all here'" in told
        assert "# the read" in "".join(path.read_text() for path in tmp_path.glob("*/stacks.txt"))


@pytest.mark.private_names
@FOUR
def test_a_report_alone_and_all_go_on(said: list[str]) -> None:
    import jax

    import hostmesh as hm

    me = jax.process_index()
    with hm.Watchdog(timeout=1.0) as watchdog:
        for step in range(3):
            watchdog.step(step)
            if step == 1 and me == 2:
                time.sleep(3.5)  # the nap
            hm.barrier("step", timeout=60)
        # Who is late, and what it is at, also in a collective's own error.
        if me == 1:
            time.sleep(2.0)  # the other nap
        with pytest.raises(hm.StragglerError, match=re.escape(_line("# the other nap"))):
            hm.ready(0.8)
        time.sleep(0.4)
        table = hm.stragglers()
        assert [row.process for row in table.rows] == [0, 1, 2, 3]
        assert all(row.step == 2 for row in table.rows)
        hm.barrier("end", timeout=20)
    text = _joined(said)
    if me == 0:
        assert text.count("process 2 of 4 has made no progress") == 1
        assert f"at tests/{_line('# the nap')}" in text
        assert re.search(r"watchdog: process 2 goes on after \d+ s", text)
    else:
        assert not text
    # What the service holds of it is gone.
    hm.barrier("stopped", timeout=20)
    store: Any = jax._src.distributed.global_state.client  # type: ignore[attr-defined]
    assert len(store.key_value_dir_get_bytes("hostmesh/watch/")) <= 9


def test_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import hostmesh as hm

    said: list[str] = []
    monkeypatch.setattr(_act, "say", said.append)
    monkeypatch.setenv(_files.FOLDER, str(tmp_path))
    with hm.Watchdog(timeout=0.4, every=0.1) as watchdog:
        hm.watchdog.step(1)
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(1.5)  # the sleep
        with pytest.raises(hm.SpecError, match="a second watchdog"):
            hm.watchdog.start(5)
        assert watchdog.timeline(tmp_path / "own.json").exists()
    text = _joined(said)
    assert f"process 0: step 1, at tests/{_line('# the sleep')}" in text
    assert re.search(r"timeline of process 0: \S+/timeline.json", text)
    said.clear()
    # Nothing is left of one that has had nothing to say, and without one a step is nothing.
    empty = tmp_path / "empty"
    monkeypatch.setenv(_files.FOLDER, str(empty))
    with hm.Watchdog(timeout=5):
        hm.watchdog.step(2)
    hm.watchdog.step(3)
    assert not said
    assert not empty.exists()
    # The program's own goes before that of the environment.
    monkeypatch.setenv("HOSTMESH_WATCHDOG", "60")
    _watchdog.start_as_asked()
    with hm.Watchdog(timeout=5) as own:
        assert _watchdog.running() is own
    assert _watchdog.running() is None
    for wrong in ({"timeout": 0}, {"action": "shout"}, {"every": -1}):
        with pytest.raises(hm.SpecError, match=r"Watchdog\("):
            hm.Watchdog(**wrong)  # type: ignore[arg-type]
    with pytest.raises(hm.SpecError, match="without a watchdog"):
        hm.stragglers()


def test_what_witnesses_of_earlier_runs_shared_goes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(_files.FOLDER, str(tmp_path))
    old, new = tmp_path / "first-127.0.0.1-1-0", tmp_path / "first-127.0.0.1-2-0"
    for path in (old, new):
        path.touch()
    os.utime(old, (time.time() - 61,) * 2)
    _files.Files(0, 1).close()
    assert list(tmp_path.iterdir()) == [new]


_PROGRAM = """
import ctypes, os, signal, sys, time
import hostmesh as hm
hm.initialize()
import jax
me = jax.process_index()
for step in range(10_000):
    hm.watchdog.step(step)
    if step == 25 and me == {process}:
        {fault}  # HERE
    hm.barrier("step", timeout=60)
    time.sleep(0.05)
"""


_ENDS = """
import atexit, ctypes, time
atexit.register(time.sleep, 1.0)  # such as a last file that is written: it runs after the watchdog
import jax
import hostmesh as hm
hm.initialize()
hm.watchdog.step(3)
hm.barrier("there")
if {hangs} and jax.process_index():  # as a destructor does that waits for another process
    libc = ctypes.CDLL(None)
    libc.__cxa_atexit(ctypes.cast(libc.pause, ctypes.c_void_p), None, None)
"""


@pytest.mark.private_names
@pytest.mark.parametrize(
    ("hangs", "action", "statuses"),
    [(False, "exit", (0, 0)), (True, "exit", (0, -9)), (True, "report", (0, None))],
)
def test_a_process_that_does_not_end_after_its_program(
    hangs: bool, action: str, statuses: tuple[int | None, ...], tmp_path: Path
) -> None:
    """No thread of Python is left there, and the others have ended well: the witness tells."""
    script = tmp_path / "program.py"
    script.write_text(_ENDS.format(hangs=hangs))
    settings = {"HOSTMESH_WATCHDOG": f"5,{action}", _files.FOLDER: str(tmp_path)}
    with processes.started(script, members([1, 1]), **settings) as started:
        assert started[0].wait(60) == 0
        lines: list[str] = []
        assert started[1].stdout is not None
        for line in started[1].stdout:
            lines.append(line)
            if "memory" in line and statuses[1] is None:
                break
        if statuses[1] is not None:
            started[1].wait(60)
        assert (0, started[1].poll()) == statuses
    text = _joined(lines)
    if hangs:
        assert "process 1 finished its program over 5 s ago and does not end: a computation" in text
        assert "process 1: last step 3, at" in text
        assert ("it is killed" in text) == (action == "exit")
    else:
        assert "watchdog" not in text


@pytest.mark.private_names
@pytest.mark.parametrize(
    ("process", "fault", "words", "statuses"),
    [
        (2, "os.kill(os.getpid(), signal.SIGSTOP)", "process 2 of 3 is stopped", (75, 75)),
        (2, "os.kill(os.getpid(), signal.SIGKILL)", "process 2 of 3 is gone", (75, 75)),
        (1, "ctypes.PyDLL(None).sleep(1000)", "a call in C holds the GIL", (75, 75)),
        (0, "os.kill(os.getpid(), signal.SIGSTOP)", "process 0, has not answered", (75, 75)),
        (0, "os.kill(os.getpid(), signal.SIGKILL)", "process 0, pid", (-6, -6)),
    ],
)
def test_a_process_whose_threads_do_not_run(
    process: int, fault: str, words: str, statuses: tuple[int, ...], tmp_path: Path
) -> None:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(_PROGRAM.format(process=process, fault=fault)))
    settings = {"HOSTMESH_WATCHDOG": "2,exit", _files.FOLDER: str(tmp_path)}
    with processes.started(script, members([1] * 3), **settings) as started:
        others = [one for number, one in enumerate(started) if number != process]
        output = "".join(one.communicate(timeout=60)[0] for one in others)
        started[process].send_signal(signal.SIGKILL)
        output += started[process].communicate(timeout=60)[0]
    text = _joined([output])
    assert words in text, output
    assert re.search(rf"process {process}: (last seen[^:]*: )?step \d+, .*program\.py:\d+", text), (
        output
    )
    if "PyDLL" in fault:  # its stack was written without its threads
        assert "program.py:10, by its stack" in text, output
    assert tuple(one.returncode for one in others) == statuses, output


_PLAIN = """
import time, jax, jax.numpy as jnp, numpy as np, hostmesh as hm
hm.initialize()
process = jax.process_index()
mesh = jax.sharding.Mesh(jax.devices(), "x")
cut = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
x = jax.make_array_from_process_local_data(cut, np.ones(1, "float32"))
program = jax.jit(lambda w, x: w + x.sum())
w = jnp.float32(0)
for step in range(20 - (process == 1 and {early})):
    w = program(w, x)
    float(w)
    if process == 1 and step == 9 and not {early}:
        time.sleep(1000)  # HERE
"""


@pytest.mark.private_names
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("early", [True, False])
def test_a_program_of_jax_alone_that_marks_nothing(early: bool, count: int, tmp_path: Path) -> None:
    """Those that wait in a compiled program have no frame for it, and look as idle as who sleeps."""
    script = tmp_path / "program.py"
    script.write_text(_PLAIN.format(early=early))
    settings = {"HOSTMESH_WATCHDOG": "3,exit", _files.FOLDER: str(tmp_path)}
    with processes.started(script, members([1] * count), **settings) as started:
        text = _joined(["".join(one.communicate(timeout=60)[0] for one in started)])
    if early:
        assert f"process 1 of {count} has finished the program, and others wait" in text
        assert "do: give all processes as many steps" in text
    else:
        assert f"process 1 of {count} has made no progress for" in text
        place = 1 + next(n for n, line in enumerate(_PLAIN.splitlines()) if "# HERE" in line)
        assert f"program.py:{place}" in text
