"""SIGUSR1 as a wish for the timeline, also where the main thread is inside C and runs no handler."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from pathlib import Path

_WISH = getattr(signal, "SIGUSR1", None)


class Bell:
    """A wait that a signal, or another thread, cuts short.

    Python's own C handler writes each signal's number to a pipe (`signal.set_wakeup_fd`). A handler
    or a pipe that somebody else has set is left alone; there is no such wish then.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        os.set_blocking(self._read, False)
        self._installed = False
        if _WISH is not None and threading.current_thread() is threading.main_thread():
            self._install(_WISH)

    def _install(self, number: signal.Signals) -> None:
        if signal.getsignal(number) is not signal.SIG_DFL or _is_caught(number):
            return
        before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        if before != -1:  # asyncio's, for one
            signal.set_wakeup_fd(before)
            return
        signal.signal(number, lambda _, __: None)
        self._installed = True

    def wait(self, seconds: float) -> bool:
        """Waits; `True` where a timeline is wished for."""
        with contextlib.suppress(OSError, ValueError):
            if select.select([self._read], [], [], max(0.0, seconds))[0]:
                return _WISH is not None and int(_WISH) in os.read(self._read, 4096)
        return False

    def ring(self) -> None:
        """Cuts a wait short."""
        with contextlib.suppress(OSError):
            os.write(self._write, b"\0")

    def close(self) -> None:
        """To be called when nobody waits any more."""
        if self._installed and threading.current_thread() is threading.main_thread():
            assert _WISH is not None
            signal.signal(_WISH, signal.SIG_DFL)
            if (now := signal.set_wakeup_fd(-1)) not in (-1, self._write):
                signal.set_wakeup_fd(now)
        for number in (self._read, self._write):
            with contextlib.suppress(OSError):
                os.close(number)


def _is_caught(number: signal.Signals) -> bool:
    """Whether some C code has a handler for a signal, which Python does not know of."""
    if sys.platform != "linux":
        return False
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        caught = next(line for line in lines if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
    return False
