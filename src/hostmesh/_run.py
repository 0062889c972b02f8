"""The launcher: starts the processes of a local cluster, shows their output, and ends them together.

Plain processes under a plain `python`: nothing runs in them but the program, so that `sys.argv`,
`__main__` and tracebacks are those of the program run alone. No part of this file needs JAX.
"""

from __future__ import annotations

import os
import queue
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from . import _hosts
from ._cluster import ABANDONED, ENDED, FAILURES, NOTES, WHY, members
from ._lines import Printer
from ._outcome import TIMED_OUT, Exit, Result
from ._verdict import name_processes

# Seconds from the request to end (SIGTERM, or the forwarded signal) to SIGKILL, by default.
GRACE = 5.0
LINGER = 15.0  # seconds after which it is told that others run while one has ended well
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ABORTED = 128 + signal.SIGABRT  # as JAX ends who has lost the coordinator
_FORWARDED = (*_ENDING, signal.SIGUSR1, signal.SIGUSR2)

# Holds the other end of a pipe from the launcher. When the launcher dies, by SIGKILL even, the pipe
# ends and the guard ends the process groups that are left. A parent-death signal would reach the
# processes but not their children, and exists on Linux only.
_GUARD = """
import os, signal, sys
groups = set()
for line in sys.stdin:
    groups ^= {int(line)}
for group in groups:
    try: os.killpg(group, signal.SIGKILL)
    except OSError: pass
"""


def run(
    command: Sequence[str],
    devices: Sequence[int],
    *,
    timeout: float | None = None,
    port: int | None = None,
    hosts: int | None = None,
    environment: Mapping[str, str] | None = None,
    output: BinaryIO | None = None,
    verbose: bool = False,
    grace: float | None = None,
) -> Result:
    """Runs `command` in `len(devices)` processes, process p with `devices[p]` CPU devices.

    Each line that they print goes to `output` (by default the standard output) behind its process's
    number. The first failure, a `timeout` in seconds or a signal ends all of them: SIGTERM (or the
    signal itself), then SIGKILL after `grace` seconds (five by default): time to save. A second
    signal does so at once. Processes that they started in turn are ended too, and all are when this
    process is killed. Where all end with 0 after a signal, that is the status of the run.

    `environment` is added to the inherited one. The programs call `hostmesh.initialize()` to join.
    With `hosts` the processes are spread, in blocks, over so many network namespaces, with names
    and addresses of their own, that are removed at the end; see `_hosts`.

    Raises `OSError` when the command cannot be started, and `ClusterError` where hosts cannot be
    made. Does not communicate itself.

    >>> import io, sys
    >>> output = io.BytesIO()
    >>> run([sys.executable, "-c", "print('hello')"], [2], output=output).status
    0
    >>> output.getvalue().split()
    [b'[0]', b'hello']
    """
    events: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
    printer = Printer(output or sys.stdout.buffer, len(devices), verbose)
    start = time.monotonic()
    with (
        _forwarding(events),
        _hosts.placed(len(devices), hosts) as homes,
        _guard() as guard,
        tempfile.TemporaryDirectory() as folder,
    ):
        places = members(devices, port=port, host=homes[0].address)
        notes = Path(folder)
        children: list[_Child] = []
        try:
            for place in places:
                env = {
                    **os.environ,
                    "PYTHONUNBUFFERED": "1",
                    "PYTHONFAULTHANDLER": "1",  # a SIGABRT, or a crash, prints Python's stacks
                    FAILURES: str(notes / "failures"),
                    NOTES: folder,
                    **place.environment(),
                    **(environment or {}),
                }
                there = homes[place.process].command(command)
                children.append(_Child(place.process, there, env, printer, events, guard, notes))
            return _watch(
                children,
                events,
                printer,
                notes,
                start,
                timeout,
                GRACE if grace is None else grace,
            )
        finally:
            for child in children:
                child.send(signal.SIGKILL)
            for child in children:
                child.join()


def _watch(
    children: Sequence[_Child],
    events: queue.SimpleQueue[tuple[str, int]],
    printer: Printer,
    notes: Path,
    start: float,
    timeout: float | None,
    grace: float,
) -> Result:
    exits: dict[int, Exit] = {}
    first: int | None = None
    status = 0
    ending = False
    aborted: list[int] = []
    notice = float("inf")
    deadline = float("inf") if timeout is None else start + timeout

    def tell(number: signal.Signals) -> float:
        for child in children:
            if child.process not in exits and (child.process != first or number == signal.SIGKILL):
                child.send(number)
        return time.monotonic() + grace

    while len(exits) < len(children):
        try:
            until = deadline if ending else min(deadline, notice)
            wait = None if until == float("inf") else max(0.0, until - time.monotonic())
            kind, value = events.get(timeout=wait)
        except queue.Empty:
            if not ending and notice < deadline:
                notice = float("inf")
                _say_who_runs(exits, children, start)
            elif ending:
                deadline = tell(signal.SIGKILL)
            else:
                ending, status = True, TIMED_OUT
                printer.hold()
                aborted = [child.process for child in children if child.process not in exits]
                for child in children:
                    child.no_core()
                deadline = tell(signal.SIGABRT)
            continue
        if kind == "exit":
            code = children[value].code
            if not exits:
                notice = time.monotonic() + LINGER
            exits[value] = Exit(value, code, time.monotonic() - start, ending, ())
            if code and not ending:
                ending, status, first = True, code, _cause(value, code, notes / "failures")
                exits[value] = replace(exits[value], stopped=value != first)
                deadline = tell(signal.SIGTERM)
        elif value not in _ENDING and kind == "signal":
            tell(signal.Signals(value))
        elif ending:
            deadline = tell(signal.SIGKILL)
        else:
            ending, status = True, 128 + value
            # Nobody reads on: that is no signal of its own to the processes.
            deadline = tell(signal.Signals(value) if kind == "signal" else signal.SIGTERM)
    for child in children:
        child.join()
    for process in aborted:
        if not printer.has_held(process, b"Fatal Python error"):
            printer.line(process, b"(no Python stack: it is past the end of Python, or has none)")
    printer.release()
    done = [
        replace(exits[p], last_lines=tuple(lines), killed=children[p].killed)
        for p, lines in enumerate(printer.last)
    ]
    why = ""
    if first is not None:
        done[first] = replace(done[first], stopped=False)
        if done[first].status == _ABORTED and str(first) in _reported(notes / "failures"):
            done[first] = replace(done[first], status=1)  # it raised; JAX aborted it on its way out
        if not done[first].killed:
            status = done[first].status or status
        with suppress(OSError):
            why, status = (notes / WHY).read_text(), ABANDONED
    elif status in {128 + n for n in _ENDING} and not any(each.status for each in done):
        status = 0  # told to stop, they did so in good order
    blamed = None if first is None else done[first]
    return Result(tuple(done), blamed, status, time.monotonic() - start, why)


def _say_who_runs(exits: Mapping[int, Exit], children: Sequence[_Child], start: float) -> None:
    """One that ended well does so when all do, in a program of JAX: the others may wait for it."""
    ago = time.monotonic() - start - min(each.seconds for each in exits.values())
    left = [child.process for child in children if child.process not in exits]
    runs = f"still run{'s' * (len(left) == 1)}"
    text = f"{name_processes(exits)} ended {ago:.0f} s ago, {name_processes(left)} {runs}"
    with suppress(OSError):
        print(f"hostmesh run: {text}", file=sys.stderr, flush=True)


def _cause(process: int, status: int, reports: Path) -> int:
    """Who failed first when `process` is the first that ended, with `status`.

    A process that raised reports it, and then takes longer to end than those that lost their
    connection to it. Only a signal that is not JAX's abort has its cause in the process itself.
    """
    if status <= 128 or status == _ABORTED:
        return int((_reported(reports) or [process])[0])
    return process


def _reported(reports: Path) -> list[str]:
    """The processes that raised, in order."""
    try:
        return reports.read_text().split()
    except OSError:
        return []


class _Child:
    """One process, in a session and process group of its own, and the two threads that follow it."""

    def __init__(
        self,
        process: int,
        command: Sequence[str],
        env: Mapping[str, str],
        printer: Printer,
        events: queue.SimpleQueue[tuple[str, int]],
        guard: _Guard,
        notes: Path,
    ) -> None:
        self.process = process
        self.code = 0
        self.killed = False
        self._notes = notes
        self._popen = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        guard.toggle(self._popen.pid)
        self._threads = [
            threading.Thread(target=self._read, args=(printer, events), daemon=True),
            threading.Thread(target=self._wait, args=(events, guard), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):  # macOS says the latter of a zombie
            if self._popen.returncode is None:
                if number in (*_ENDING, signal.SIGABRT, signal.SIGKILL):
                    self.killed = number == signal.SIGKILL
                    with suppress(OSError), (self._notes / ENDED).open("a") as file:
                        file.write(f"{self.process}\n")  # for its witness
                os.killpg(self._popen.pid, number)

    def no_core(self) -> None:
        if hasattr(resource, "prlimit"):
            with suppress(OSError):
                hard = resource.prlimit(self._popen.pid, resource.RLIMIT_CORE)[1]
                resource.prlimit(self._popen.pid, resource.RLIMIT_CORE, (0, hard))

    def join(self) -> None:
        # Bounded: a process that left the group on purpose may hold the pipe for as long as it likes.
        for thread in self._threads:
            thread.join(GRACE)

    def _wait(self, events: queue.SimpleQueue[tuple[str, int]], guard: _Guard) -> None:
        code = self._popen.wait()
        self.code = code if code >= 0 else 128 - code
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)  # what it started and left behind
        guard.toggle(self._popen.pid)
        events.put(("exit", self.process))

    def _read(self, printer: Printer, events: queue.SimpleQueue[tuple[str, int]]) -> None:
        stream = self._popen.stdout
        assert stream is not None
        with stream:
            for line in stream:
                try:
                    printer.line(self.process, line)
                except OSError:
                    events.put(("unread", signal.SIGPIPE))  # and read on: a full pipe blocks it


class _Guard:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._popen = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def toggle(self, group: int) -> None:
        """Adds a process group to those that must not be left, or takes it out again."""
        assert self._popen.stdin is not None
        with self._lock, suppress(OSError, ValueError):
            self._popen.stdin.write(b"%d\n" % group)
            self._popen.stdin.flush()

    def close(self) -> None:
        assert self._popen.stdin is not None
        with self._lock, suppress(OSError):
            self._popen.stdin.close()
        self._popen.wait()


@contextmanager
def _guard() -> Generator[_Guard]:
    guard = _Guard()
    try:
        yield guard
    finally:
        guard.close()


@contextmanager
def _forwarding(events: queue.SimpleQueue[tuple[str, int]]) -> Generator[None]:
    """Turns signals to this process into events. Only a main thread can; others keep theirs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # SimpleQueue.put may be called from a handler at any point; Queue.put would deadlock.
    # What is ignored (SIGHUP under nohup, SIGINT in a background job) stays so.
    taken = [n for n in _FORWARDED if signal.getsignal(n) is not signal.SIG_IGN]
    before = {n: signal.signal(n, lambda got, _: events.put(("signal", got))) for n in taken}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
