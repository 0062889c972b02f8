"""How a program ends that hangs: an error in its main thread, or else the process's exit."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

from .._cluster import ABANDONED, NOTES, WHY

# Ignored where nobody asks for it, and used by hardly anybody: who sends it by mistake does no harm.
_SIGNAL = getattr(signal, "SIGURG", None)


def say(text: str) -> None:
    """Writes whole lines to standard error."""
    with contextlib.suppress(Exception):
        sys.stderr.write(text)
        sys.stderr.flush()


class Interrupter:
    """Raises an error in a thread from another one.

    A signal's handler is the way, as it ends `time.sleep`, `read` and waiting for a lock, too; only
    the main thread has that. Else the error is raised once the thread runs Python again. `taken`
    tells whether it was.
    """

    def __init__(self) -> None:
        self.taken = False
        self._error: BaseException | None = None
        self._before: Any = None
        self._installed = False
        if _SIGNAL is not None and threading.current_thread() is threading.main_thread():
            self._before = signal.getsignal(_SIGNAL)
            if self._before in (signal.SIG_DFL, signal.SIG_IGN):
                signal.signal(_SIGNAL, self._handle)
                self._installed = True

    def interrupt(self, thread: threading.Thread, error: BaseException) -> None:
        """Raises an error in a thread."""
        self.taken, self._error = False, error
        if thread.ident is None or not thread.is_alive():
            return
        if self._installed and _SIGNAL is not None and thread is threading.main_thread():
            signal.pthread_kill(thread.ident, _SIGNAL)
            return
        # Python makes the object itself, of the class alone.
        kind = type(type(error).__name__, (type(error),), {"__init__": self._made})
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident), ctypes.py_object(kind)
        )

    def close(self) -> None:
        if self._installed and threading.current_thread() is threading.main_thread():
            assert _SIGNAL is not None
            signal.signal(_SIGNAL, self._before)
            self._installed = False

    def _made(self, made: BaseException) -> None:
        self.taken = True
        assert self._error is not None
        made.args = self._error.args
        made.__suppress_context__ = True  # it does not follow from what was being handled

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        error, self._error = self._error, None
        if error is not None:
            self.taken = True
            raise error from None  # it does not follow from what was being handled


def note_why(text: str) -> None:
    """Leaves for the launcher, where there is one, why a watchdog ends this process."""
    if NOTES in os.environ:
        with contextlib.suppress(OSError), open(os.path.join(os.environ[NOTES], WHY), "x") as file:
            file.write(text)


def end_process() -> None:
    """Ends this process at once, with `ABANDONED`: nothing that hangs can keep it."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    os._exit(ABANDONED)
