"""The channel of each feeder between processes, and what is left of it when all are done with it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from .. import _jax, _rounds
from .._coordination import channel_name
from .._verdict import Call


@dataclass
class _Family:
    """Feeders that were made in one channel of the program, numbered as they began."""

    count: int = 0
    folders: dict[int, str] = field(default_factory=dict[int, str])  # in the store, not erased
    left: set[int] = field(default_factory=set[int])  # that this process is done with
    lock: threading.Lock = field(default_factory=threading.Lock)


_families: dict[tuple[str, tuple[int, ...]], _Family] = {}


class Line:
    """A feeder's channel: its number says which feeders of the processes belong together."""

    def __init__(self, members: tuple[int, ...]) -> None:
        name = channel_name()
        self._family = _families.setdefault((name, members), _Family())
        with self._family.lock:
            self._number = self._family.count
            self._family.count += 1
            self.channel = _rounds.channel_of(f"{name} feeder {self._number}", members)
            self._family.folders[self._number] = self.channel.folder

    def leave(self, call: Call, why: str) -> None:
        """This process holds no round of this line any more: with a reason, it tells the others."""
        if why and _jax.store() is not None:
            with contextlib.suppress(Exception):  # the coordinator may be gone already
                _rounds.post_failure(self.channel, Call(call.what, call.site, why))
        _rounds.forget(self.channel)
        with self._family.lock:
            self._family.left.add(self._number)

    def left(self) -> tuple[int, ...]:
        """The lines before this one that this process is done with, the oldest of them."""
        with self._family.lock:
            return tuple(sorted(self._family.left)[:64])

    def erase(self, left: Sequence[Sequence[int]]) -> None:
        """Deletes lines that all processes are done with: to be called with what all told."""
        numbers = set(left[0]).intersection(*left[1:])
        with self._family.lock:
            self._family.left -= numbers
            folders = [self._family.folders.pop(number) for number in numbers]
        if self.channel.rank == 0:
            for folder in folders:
                _rounds.erase(folder)
