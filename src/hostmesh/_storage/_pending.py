"""The save that goes on in the background, of which there is one at most."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable

_log = logging.getLogger("hostmesh")
# The thread's name is that of its channel: its agreements are paired with those of its like.
_NAME = "hostmesh-save"


class SaveHandle:
    """A save in the background: what `async_save` returns."""

    def __init__(self, what: str, work: Callable[[], object]) -> None:
        self._what = what
        self._error: BaseException | None = None
        self._work: Callable[[], object] | None = work
        # Not a daemon: a program that ends waits for it.
        self._thread = threading.Thread(target=self._run, name=_NAME)

    def _run(self) -> None:
        assert self._work is not None
        try:
            self._work()
        except BaseException as error:
            self._error = error
        finally:
            self._work = None  # and with it the copies that it wrote

    def start(self, here: bool) -> None:
        """Starts it in its thread, or does it `here`, in the caller's."""
        if here:
            self._run()
        else:
            self._thread.start()

    def done(self) -> bool:
        """Whether it has ended on this process, well or not: others may tell otherwise at the time.

        What all of them do then is to be decided together: `all_processes(handle.done())`.
        """
        return self._work is None

    def wait(self) -> None:
        """Waits until all processes have saved, and the file has its name.

        Raises what the save raised, once; see `save_safetensors`.
        """
        self._join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def report(self) -> None:
        """Says in the log how it ended, where nobody asked."""
        self._join()
        if self._error is not None:
            _log.error("%s failed in the background: %s", self._what, self._error)

    def _join(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()


_current: SaveHandle | None = None


def settle() -> None:
    """Waits for the save in the background, if there is one, and raises what nobody has heard of it."""
    global _current
    before, _current = _current, None
    if before is not None:
        before.wait()


def begin(what: str, work: Callable[[], object], here: bool) -> SaveHandle:
    """Starts a save in the background, after `settle`; or saves `here`, in this thread."""
    global _current
    handle = SaveHandle(what, work)
    _current = handle
    handle.start(here)
    return handle


@atexit.register
def _report() -> None:
    if _current is not None:
        _current.report()
