"""`Watchdog`: no hang without a name."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, cast

from .. import _exit, _jax, _moments
from .._cluster import WATCHDOG
from .._errors import SpecError, build
from .._verdict import site_of
from . import _files, _marks, _report
from ._beat import Beat
from ._judge import Limits, Seen
from ._keeper import Keeper
from ._record import Record
from ._sample import Sampler

_TOLD = 8  # processes whose whereabouts an error tells
_numbers = itertools.count()
_asked: Watchdog | None = None  # the one that the environment asked for


class Watchdog:
    """Says who is behind when processes stand still, at which step and line, and who waits for it.

    Every process makes the same one. A thread in each of them posts a small heartbeat to JAX's
    coordination service; process 0 reads them all and prints one report on standard error where a
    process makes no progress for `timeout` seconds, or is silent. A process that waits in a
    collective is not the one behind, one that compiles is told as such, and a stop of the whole
    program (a suspended machine) is no alarm. The first mark arms it.

    Args:
      timeout: seconds without progress. `step` is progress, and so is every call of hostmesh.
      action: what follows once the time-out has passed. `"report"`: nothing, and a line tells when
        it is over. `"raise"`: `StragglerError` in the main thread of every process; one that cannot
        take it exits with status 75. `"exit"`: all processes exit with status 75 after the
        report, but for those that JAX aborts as the first of them are gone.
      every: seconds between heartbeats; by default a tenth of `timeout`, 5 at most.
      compiling: seconds that JAX may compile without being taken for stuck.
      events: how many events the timeline holds.
      line: has process 0 print who is slow, in a line, every so many seconds.

    Raises:
      SpecError: for a time or an action that cannot be, and where a watchdog runs already.

    Communicates through the coordination service alone, in the background.

    >>> import hostmesh
    >>> with hostmesh.Watchdog(timeout=60) as watchdog:
    ...     for step in range(3):
    ...         watchdog.step(step)
    """

    def __init__(
        self,
        timeout: float = 300.0,
        *,
        action: Literal["report", "raise", "exit"] = "report",
        every: float | None = None,
        compiling: float = 3600.0,
        events: int = 1000,
        line: float | None = None,
    ) -> None:
        self.timeout = _positive("timeout", timeout)
        self.every = _positive("every", min(5.0, timeout / 10) if every is None else every)
        if action not in ("report", "raise", "exit"):
            raise _refusal("action", action, 'it is "report", "raise" or "exit"')
        self.action = action
        lost = max(0.5 * _jax.heartbeat_timeout(), _jax.heartbeat_timeout() - 15.0)
        silence = max(3 * self.every, min(2.0, timeout / 2))
        self._limits = Limits(self.timeout, max(compiling, timeout), silence, lost)
        self._line = None if line is None else _positive("line", line)
        self._record = Record(events)
        self._keeper: Keeper | None = None
        self._files: _files.Files | None = None
        self._hooks: list[Callable[[], None]] = []
        self._pid = os.getpid()

    def start(self) -> Self:
        """Begins to watch, until `stop` or the end of the program."""
        if _asked is not None and _asked is not self and _asked is running():
            _asked.stop()  # the program's own goes before that of the environment
        if _marks.watch is not None:
            raise build(
                SpecError,
                where="Watchdog.start()",
                given="a second watchdog",
                rule="a process has one that runs at a time",
                advice="stop the first, or mark steps on it: hostmesh.watchdog.step(n)",
            )
        process, processes, _ = _jax.place()
        self._files = files = _files.Files(process, processes)
        sampler = Sampler(self._record, process, str(files.folder))
        name = str(next(_numbers))
        self._keeper = Keeper(
            self._record,
            sampler,
            files,
            self._limits,
            self.every,
            self.action,
            process,
            name,
            self._line,
        )
        _marks.watch = _Marks(self, self._record)
        self._hook_errors()
        _exit.at_end(self._stop_at_end)
        atexit.register(self._at_exit)  # before that
        self._keeper.start()
        return self

    def stop(self) -> None:
        """Ends watching; a second call does nothing."""
        self._stop(finished=False)

    def _stop_at_end(self) -> None:
        """The others need this process no more; else JAX may have it wait for them, and rightly."""
        self._stop(finished=_exit.is_arranged() or _jax.place()[1] == 1)

    def _stop(self, *, finished: bool) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        _marks.watch = None
        for undo in self._hooks:
            undo()
        self._hooks.clear()
        keeper.stop(finished)
        atexit.unregister(self._at_exit)
        _exit.not_at_end(self._stop_at_end)
        if self._files is not None:
            self._files.close()

    def step(self, number: int) -> None:
        """Marks that a step begins. A few assignments: it costs about a microsecond."""
        self._record.step(number)
        _moments.step(number)

    def timeline(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Writes the last events of this process (steps, collectives, waits) as a file of JSON.

        Returns its path; `hostmesh doctor FILE...` reads those of several processes together.
        Raises `OSError` where it cannot be written.
        """
        files = self._files or _files.Files(*_jax.place()[:2])
        return files.write_timeline(self._record.timeline(), path)

    def last_beats(self, processes: Iterable[int] | None = None) -> list[Beat]:
        """The last heartbeats of some processes, or of all: see `stragglers`."""
        return self._keeper.post.last_beats(processes) if self._keeper else []

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, trace
        if error is not None and self._keeper is not None:
            self._record.note("failed", f"{type(error).__name__}: {error}")
            self._keeper.write_timeline()
        self.stop()

    def _at_exit(self) -> None:
        """The program came to its end: this process beats on while it waits for the others."""
        if self._pid != os.getpid():
            return  # a forked child
        self._record.ended = True
        self._record.touch()
        self._record.note("ended", "the program")

    def _hook_errors(self) -> None:
        before, threads_before = sys.excepthook, threading.excepthook

        def hook(
            kind: type[BaseException], error: BaseException, trace: TracebackType | None
        ) -> None:
            self._record.note("failed", f"{kind.__name__}: {error}")
            if self._keeper is not None:
                self._keeper.write_timeline()
            before(kind, error, trace)

        def thread_hook(args: threading.ExceptHookArgs) -> None:
            with contextlib.suppress(Exception):
                self._note_thread(args)
            threads_before(args)

        sys.excepthook, threading.excepthook = hook, thread_hook

        def undo() -> None:
            if sys.excepthook is hook:
                sys.excepthook = before
            if threading.excepthook is thread_hook:
                threading.excepthook = threads_before

        self._hooks.append(undo)

    def _note_thread(self, args: threading.ExceptHookArgs) -> None:
        trace: Any = args.exc_traceback
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        at = ""
        if trace is not None:
            at = f" at {site_of(trace.tb_frame.f_code.co_filename, trace.tb_lineno)}"
        name = args.thread.name if args.thread else "?"
        words = f"thread {name!r} ended with {args.exc_type.__name__}: {args.exc_value}{at}"
        self._record.note("thread failed", words)
        if self._keeper is not None:
            self._keeper.notes.append(words)


def running() -> Watchdog | None:
    """The watchdog that runs in this process."""
    return _marks.watch.owner if isinstance(_marks.watch, _Marks) else None


def start_as_asked() -> None:
    """Starts one where the environment asks for it: `HOSTMESH_WATCHDOG=300`, or `300,raise`."""
    global _asked
    given = os.environ.get(WATCHDOG, "")
    if given in ("", "0") or _marks.watch is not None:
        return
    seconds, _, action = given.partition(",")
    try:
        timeout = float(seconds)
    except ValueError:
        raise _refusal("timeout", given, "it is seconds, as 300 or 300,raise") from None
    _asked = Watchdog(timeout, action=cast("Any", action or "report")).start()


class _Marks:
    """What hostmesh's own calls leave their marks on."""

    def __init__(self, owner: Watchdog, record: Record) -> None:
        self.owner = owner
        self.touch = record.touch
        self.call = record.call
        self.queue = record.queue

    def whereabouts(self, processes: Iterable[int]) -> str:
        words: list[str] = []
        with contextlib.suppress(Exception):  # the service may be gone: there is an error already
            for beat in self.owner.last_beats(itertools.islice(processes, _TOLD)):
                words.append(f"process {beat.process}: {_report.where(Seen(beat))}")
        return "; ".join(words)


def _positive(name: str, value: float) -> float:
    if not value > 0:
        raise _refusal(name, value, "it is above 0")
    return float(value)


def _refusal(name: str, given: object, rule: str) -> SpecError:
    return build(
        SpecError,
        where=f"Watchdog({name}=)",
        given=repr(given),
        rule=rule,
        advice=f"correct the argument, or the variable {WATCHDOG}",
    )
