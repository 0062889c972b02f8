"""Preemption: a notice to one process becomes one step at which all of them stop.

A notice (SIGTERM, a file, a call) is one key in JAX's coordination service, for which a thread of
every process waits. When it comes, each thread holds `should_stop` still, the processes tell each
other how many calls each has made, and the call after the furthest one is where all stop. Without a
notice a call of `should_stop` looks at a number of its own and sends nothing.

The protocol is that of JAX's preemption sync manager (`reached_preemption_sync_point`), whose
notices count as well; it knows SIGTERM only, and takes the numbers of the steps on trust.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any, Literal, TypeAlias

from . import _jax, _moments
from ._config import config
from ._coordination import agree, channel
from ._decisions import any_process
from ._exit import at_end
from ._watch import _marks

# In the store: `_FOLDER`, the number of the state, and a process, whose thread waits for that key.
_FOLDER = "hostmesh/stop/"
_CHANNEL = "hostmesh-stop"
_HOUR = 3600.0
_POLL = 1.0  # seconds between two looks for `config.stop_file`


@dataclass(frozen=True)
class Stop:
    """Why all processes stop.

    Attributes:
      kind: `"signal"`; `"maintenance"`, for a notice that came to JAX's own preemption service;
        `"file"`, for `config.stop_file`; `"request"`, for `request_stop`. An error is none of them:
        it ends the processes as an exception.
      process: the process that the first notice came to; -1 where JAX does not tell.
      detail: the signal's name, the file's, or what was passed to `request_stop`.
    """

    kind: Literal["signal", "maintenance", "file", "request"]
    process: int
    detail: str = ""


Callback: TypeAlias = Callable[[Stop], Any]


def should_stop(step: int | None = None) -> bool:
    """Whether this is the step at which all processes stop, to save and to exit, after a notice.

    To be called in every process at the same places, in training, evaluation and warm-up loops
    alike: it is the number of the call that the processes agree on. Once true, it stays so.

    Args:
      step: the number of the step, which must then be the same in all processes.

    Returns:
      `False` until a notice has come to any process and all have reached the agreed call. Sends
      nothing until then. A notice is SIGTERM, for which the first call takes the handler (one that
      Python had before is called as well; an ignored SIGTERM stays so), `config.stop_file` coming
      to be, `request_stop`, or what JAX's preemption service is told. In a single process, or
      without JAX's distributed runtime, it works the same.

    Raises:
      DivergenceError: on all processes, where they come to the agreed call with different steps.
      StragglerError: where a notice came and a process never called this function.

    On public API alone every call is a round trip.

    >>> import hostmesh
    >>> for step in range(3):
    ...     if hostmesh.should_stop(step):
    ...         break  # after saving
    >>> step
    2
    """
    _moments.step(step)
    _marks.touch()
    return _state().should_stop(step)


def on_preemption(callback: Callback) -> Callback:
    """Has a function called once with the `Stop`, in `should_stop`, just before it gives `True`.

    Returns the function, so that it serves as a decorator. Does not communicate.

    >>> import hostmesh
    >>> @hostmesh.on_preemption
    ... def note(stop):
    ...     print(f"stopping: {stop.kind}")
    """
    _state().callbacks.append(callback)
    return callback


def request_stop(detail: str = "") -> None:
    """Gives notice that all processes stop, from any one of them and any thread; returns at once.

    >>> import hostmesh
    >>> hostmesh.request_stop("the loss is no number")  # doctest: +SKIP
    """
    _state().notice("request", detail)


def stop_reason() -> Stop | None:
    """Why all stop, once `should_stop` has said so.

    >>> import hostmesh
    >>> hostmesh.stop_reason()
    """
    return None if _current is None else _current.reason


class _State:
    """What this process knows of notices. `number` tells one from those before, in tests."""

    def __init__(self, number: int = 0) -> None:
        self.callbacks: list[Callback] = []
        self.reason: Stop | None = None
        self._folder = f"{_FOLDER}{number}/"
        self._process, self._count, _ = _jax.place()
        self._is_alone = self._count == 1
        self._store = None if self._is_alone else _jax.store()
        self._lock = threading.Lock()  # held while the call to stop at is being agreed on
        self._calls = 0
        self._at: int | None = None  # the call that all stop at
        self._why: Stop | None = None
        self._problem: Exception | None = None
        self._noticed: Stop | None = None  # by this process
        self._notices: queue.SimpleQueue[Stop] = queue.SimpleQueue()
        self._handlers: tuple[Any, Any] = None, None  # ours for SIGTERM, and the one before
        self._take_signal()
        self._is_over = False
        self._threads = [
            threading.Thread(target=work, name="hostmesh-stop", daemon=True)
            for work in (self._look, self._wait)
        ]
        for thread in self._threads:
            thread.start()
        at_end(self.close)

    def _take_signal(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        before = signal.getsignal(signal.SIGTERM)  # None: JAX's own, which only notes it
        if before is signal.SIG_IGN:
            return

        def handle(number: int, frame: FrameType | None) -> None:
            self.notice("signal", signal.Signals(number).name)
            if callable(before):
                before(number, frame)

        self._handlers = handle, before
        signal.signal(signal.SIGTERM, handle)

    def notice(self, kind: Literal["signal", "file", "request"], detail: str) -> None:
        """Takes a notice; it may be called by a signal handler."""
        stop = Stop(kind, self._process, detail)
        self._noticed = self._noticed or stop
        self._notices.put(stop)

    def _look(self) -> None:
        """Passes the first notice of this process on, to all."""
        while self._noticed is None:
            with contextlib.suppress(queue.Empty):
                self._notices.get(timeout=_POLL)
            if self._is_over:
                return
            if config.stop_file and self._noticed is None and os.path.exists(config.stop_file):
                self.notice("file", config.stop_file)
        if self._store is not None:
            message = json.dumps(asdict(self._noticed)).encode()
            with contextlib.suppress(Exception):  # the service is gone, and all else with it
                if self._store.set_once(f"{self._folder}first", message):
                    for process in range(self._count):
                        self._store.set_once(f"{self._folder}{process}", message)

    def _wait(self) -> None:
        """Waits for a notice to any process, and agrees on where to stop."""
        if self._store is None:
            return
        message = None
        while message is None:
            try:
                message = self._store.get(f"{self._folder}{self._process}", _HOUR)
            except Exception:
                return  # the service is gone
        if not message:  # it is over
            return
        with self._lock, channel(_CHANNEL):
            try:
                agreed = agree("the step to stop at", data=self._calls.to_bytes(8))
            except Exception as error:
                self._problem = error
                return
            self._at = 1 + max(int.from_bytes(calls) for calls in agreed.data)
            self._why = Stop(**json.loads(message))

    def should_stop(self, step: int | None) -> bool:
        """See the function."""
        if self.reason is not None:
            return True
        with self._lock:
            self._calls += 1
            if self._problem is not None:
                raise self._problem
            if self._at is None:
                self._hear()
            if self._at is None or self._calls < self._at or self._why is None:
                return False
        if not self._is_alone:
            with channel(_CHANNEL):
                agree(f"should_stop({'' if step is None else step})", data=b"")
        self.reason = self._why
        for callback in self.callbacks:
            callback(self._why)
        return True

    def _hear(self) -> None:
        """Looks for notices for which no thread waits."""
        if self._is_alone:
            self._why = self._noticed
        elif self._store is None:
            if any_process(self._noticed is not None):
                self._why = self._noticed or Stop("request", -1, "of another process")
        elif _jax.reached_preemption_sync_point(self._calls):
            self._why = Stop("maintenance", -1, "JAX's preemption service")
        if self._why is not None:
            self._at = self._calls

    def close(self) -> None:
        """Ends the threads, and gives the signal back."""
        self._is_over = True
        self._notices.put(Stop("request", self._process))
        if self._store is not None:
            with contextlib.suppress(Exception):
                self._store.set_once(f"{self._folder}{self._process}", b"")
        for thread in self._threads:
            thread.join(_POLL)
        handle, before = self._handlers
        if handle is not None and signal.getsignal(signal.SIGTERM) is handle:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


_current: _State | None = None
_lock = threading.Lock()


def _state() -> _State:
    global _current
    with _lock:
        if _current is None:
            _current = _State()
        return _current


def forget(number: int) -> None:
    """Begins anew, for tests, where all processes stop many times: each time by another `number`."""
    global _current
    with _lock:
        if _current is not None:
            _current.close()
        _current = _State(number)
