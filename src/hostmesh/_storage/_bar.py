"""How far a load is: a line on standard error of process 0, or a function of the caller's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

import jax

from .._config import config
from .._progress import write_line

Progress: TypeAlias = "bool | Callable[[int, int], object] | None"

_INTERVAL = 0.5
_MIB = 2**20


class Bar:
    """The progress of one process through `total` bytes."""

    def __init__(self, progress: Progress, total: int, words: str) -> None:
        self._call = progress if callable(progress) else None
        asked = config.progress if progress is None else bool(progress)
        self._shows = self._call is None and asked and jax.process_index() == 0
        self._total, self._words = total, words
        self._start = time.monotonic()
        self._next = self._start + (0 if progress is True else 1.0)
        self._done = 0

    def add(self, nbytes: int) -> None:
        """So many bytes more are on their devices."""
        self._done += nbytes
        now = time.monotonic()
        if self._call is not None:
            self._call(self._done, self._total)
        elif self._shows and (now >= self._next or self._done >= self._total):
            rate = self._done / max(now - self._start, 1e-9) / _MIB
            write_line(
                f"{self._words}: {self._done // _MIB} of {self._total // _MIB}"
                f" MiB on process 0, {rate:.0f} MiB/s",
                last=self._done >= self._total,
            )
            self._next = now + _INTERVAL
