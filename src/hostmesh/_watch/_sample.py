"""Where this process's threads are, and how its host is."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import jax.monitoring

from .. import _machine
from . import _stacks
from ._beat import Beat, Phase
from ._record import Record

_READERS = ("hostmesh-read",)  # the thread that asks a Feeder's source


# Files and lines of the program's own code at which compiled programs are called. A thread that waits
# in one has no frame for it: it is told from one that sleeps by the line, which compiled it before.
_programs: set[tuple[str, int]] = set()


def _note_program(event: str, duration_secs: float, **_: str | int) -> None:
    del duration_secs
    if not event.endswith("/backend_compile_duration"):
        return
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and not _stacks.is_users(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is not None:
        _programs.add((frame.f_code.co_filename, frame.f_lineno or 0))


@functools.cache  # once a process
def _listen() -> None:
    jax.monitoring.register_event_duration_secs_listener(_note_program)


class Host(NamedTuple):
    """How a host is, and what this process holds of it, in bytes."""

    load: float
    cores: int
    rss: int
    free: int
    memory: int


def host() -> Host:
    """This host now; what the system does not tell is 0."""
    rss = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        page = os.sysconf("SC_PAGE_SIZE")
        rss = int(Path("/proc/self/statm").read_text().split()[1]) * page
    memory, free = _machine.memory()
    return Host(_machine.load(), os.cpu_count() or 1, rss, free, memory)


def process_state(pid: int) -> str:
    """How the kernel has a process of this host: "stopped", "gone", "runs", ...; "" if unknown."""
    if sys.platform != "linux":
        return ""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "gone"
    names = {"T": "stopped", "t": "traced", "Z": "gone", "X": "gone", "D": "in the kernel"}
    return names.get(letter, "runs")


class Sampler:
    """Makes this process's beats, of one watched thread: the one that marks steps."""

    def __init__(self, record: Record, process: int, folder: str) -> None:
        self._record = record
        self._process = process
        self._folder = folder
        self._host = socket.gethostname()
        self._number = 0
        self._cpu: tuple[float, float] | None = None
        self._last_place = ("", "")
        self.thread = threading.main_thread()
        _listen()

    def stacks(self) -> dict[str, _stacks.Stack]:
        """The stacks of all threads by name: the watched one first, hostmesh's own last."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]

        def rank(ident: int) -> int:
            ours = names.get(ident, "").startswith("hostmesh")
            return 0 if ident == self.thread.ident else 1 + ours

        order = sorted(frames, key=rank)
        return {
            names.get(ident, f"thread {ident:#x}"): _stacks.stack_of(frames[ident])
            for ident in order
        }

    def own_stack(self) -> _stacks.Stack:
        """The stack of the watched thread, or of the one that it waits for here."""
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
        call = self._record.current(self.thread.ident or 0)
        if call is not None and call.kind == "feed" and not _is_waiting(call.is_waiting):
            for thread in threading.enumerate():
                if thread.name in _READERS and thread.ident in frames:
                    return _stacks.stack_of(frames[thread.ident])
        return _stacks.stack_of(frames.get(self.thread.ident or 0))

    def beat(self, notes: tuple[str, ...] = ()) -> Beat:
        """The next beat."""
        record, now = self._record, time.monotonic()
        stack = self.own_stack()
        phase, what, site, began = self._phase(stack)
        place = _stacks.innermost(stack)
        if place is not None and (_stacks.is_users(place.file) or not self._last_place[0]):
            self._last_place = (place.place, place.source[:100])
        self._number += 1
        here = host()
        return Beat(
            self._process,
            self._number,
            self._host,
            os.getpid(),
            step=record.step_number,
            marks=record.marks,
            age=now - record.marked,
            phase=phase,
            what=what,
            site=site,
            since=now - began,
            place=self._last_place[0],
            line=self._last_place[1],
            cpu=self._share(now),
            load=here.load,
            cores=here.cores,
            rss=here.rss,
            free=here.free,
            memory=here.memory,
            queue=record.depth,
            took=record.took,
            waited=record.waited,
            steps=record.steps,
            busy=record.busy,
            calls=record.calls,
            folder=self._folder,
            notes=notes,
        )

    def _phase(self, stack: _stacks.Stack) -> tuple[Phase, str, str, float]:
        record = self._record
        if record.ended:
            return "ended", "", "", record.marked
        call = record.current(self.thread.ident or 0)
        if call is not None:
            waits = _is_waiting(call.is_waiting)
            return ("agrees" if waits else "feeds"), call.what, call.site, call.began
        if _stacks.is_compiling(stack):
            return "compiles", "", "", record.marked
        if _stacks.is_on_devices(stack) or (stack and stack[0][:2] in _programs):
            return "devices", "", "", record.marked
        return "runs", "", "", record.marked

    def _share(self, now: float) -> float:
        """How much of a CPU the watched thread has taken since the last time."""
        if self.thread is not threading.main_thread():
            return 0.0  # it may end while it is asked, which the system does not forgive
        before, spent = self._cpu, 0.0
        try:
            clock = time.pthread_getcpuclockid(self.thread.ident or 0)
            spent = time.clock_gettime(clock)
        except (OSError, AttributeError):  # the thread has ended, or the system has no such clock
            return 0.0
        self._cpu = (now, spent)
        if before is None or now <= before[0]:
            return 0.0
        return min(1.0, max(0.0, (spent - before[1]) / (now - before[0])))


def _is_waiting(tells: object) -> bool:
    return not callable(tells) or bool(tells())
