"""`hostmesh.watchdog`: the watchdog that runs in this process, whoever started it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from .. import _moments
from . import _watchdog


class Running:
    """The watchdog of this process: `hostmesh.watchdog`.

    A program that marks its steps here runs with and without one; `HOSTMESH_WATCHDOG=300` in the
    environment has `hostmesh.initialize` start one.

    >>> import hostmesh
    >>> hostmesh.watchdog.step(7)  # nothing, where none runs
    """

    def start(self, timeout: float = 300.0, **options: Any) -> _watchdog.Watchdog:
        """Starts one, with the arguments of `Watchdog`, until `stop` or the end of the program."""
        return _watchdog.Watchdog(timeout, **options).start()

    def stop(self) -> None:
        """Stops it, where one runs."""
        if (running := _watchdog.running()) is not None:
            running.stop()

    def step(self, number: int) -> None:
        """Marks that a step begins: for a watchdog where one runs, and for faults on purpose."""
        if (running := _watchdog.running()) is not None:
            running.step(number)
        else:
            _moments.step(number)

    def timeline(self, path: str | os.PathLike[str] | None = None) -> Path | None:
        """Writes the timeline of this process; `None` where no watchdog runs."""
        running = _watchdog.running()
        return None if running is None else running.timeline(path)


watchdog = Running()
