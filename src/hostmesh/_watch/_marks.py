"""Where hostmesh's own calls leave marks for a watchdog, if one runs: nothing but a look otherwise.

At the bottom of the layers: whoever makes a mark imports nothing of the watchdog.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Protocol


class Watch(Protocol):
    """What a running watchdog takes marks by."""

    def touch(self) -> None:
        """Progress of any kind."""

    def call(
        self, kind: str, what: str, site: str, is_waiting: Callable[[], bool] | None
    ) -> contextlib.AbstractContextManager[None]:
        """A call that may wait; see `call` below."""
        ...

    def queue(self, depth: int) -> None:
        """How many batches are ready."""

    def whereabouts(self, processes: Iterable[int]) -> str:
        """Where other processes are, in words."""
        ...


watch: Watch | None = None
_nothing = contextlib.nullcontext()


def touch() -> None:
    """Progress of any kind."""
    if watch is not None:
        watch.touch()


def call(
    kind: str, what: str, site: str, is_waiting: Callable[[], bool] | None = None
) -> contextlib.AbstractContextManager[None]:
    """Within the block this thread is in a call: `kind` is "agree", "move" or "feed".

    It waits for other processes there, unless `is_waiting` says that it does not. Coming in and
    going out are progress.
    """
    return _nothing if watch is None else watch.call(kind, what, site, is_waiting)


def whereabouts(processes: Iterable[int]) -> str:
    """Where other processes are, as a watchdog knows: in brackets, or ""."""
    words = "" if watch is None else watch.whereabouts(processes)
    return f" ({words})" if words else ""
