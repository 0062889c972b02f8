"""Where a feeder's time goes, and one line that shows it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

_INTERVAL = 0.5  # seconds between two looks of the line


@dataclass(frozen=True)
class FeederStats:
    """Times in seconds and amounts of one process since the feeder began.

    Attributes:
      process: the process that this is of.
      batches: batches handed out.
      examples: rows in them that are no filler, of this process alone.
      nbytes: bytes of this process's parts of them.
      elapsed: since the first batch was asked for.
      waited: how long the step waited in `next`.
      source, transform: how long the source and `transform` took, in a thread of their own.
      staging: copying batches into host buffers, in the same thread.
      agreement: waiting for other processes, in the feeder's thread.
      transfer: starting the transfers to devices.
      queue: batches on devices, ready to be handed out now.
      shapes: distinct shapes of batches so far (with `pad_to`).
      others: with `everywhere`, the same of all processes, this one included, in their order.
    """

    process: int
    batches: int
    examples: int
    nbytes: int
    elapsed: float
    waited: float
    source: float
    transform: float
    staging: float
    agreement: float
    transfer: float
    queue: int
    shapes: int
    others: tuple[FeederStats, ...] = ()

    @property
    def examples_per_second(self) -> float:
        return self.examples / self.elapsed if self.elapsed else 0.0

    @property
    def bytes_per_second(self) -> float:
        return self.nbytes / self.elapsed if self.elapsed else 0.0

    @property
    def slowest(self) -> int:
        """The process whose source, transform and copies take longest a batch."""
        return max(self.others or (self,), key=lambda one: one.reading).process

    @property
    def reading(self) -> float:
        """Seconds that a batch takes to be read and made ready in host memory."""
        return (self.source + self.transform + self.staging) / max(self.batches, 1)

    def line(self) -> str:
        """All in one line.

        >>> FeederStats(0, 4, 32, 2**20, 2.0, 0.5, 1.0, 0.25, 0.25, 0.0, 0.01, 2, 1).line()
        '4 batches, 16 examples/s, 0.5 MiB/s; waited 25 %; source 50 %; transform 12 %; queue 2'
        """
        share = {
            name: f"{100 * getattr(self, name) / self.elapsed if self.elapsed else 0:.0f} %"
            for name in ("waited", "source", "transform")
        }
        return (
            f"{self.batches} batches, {self.examples_per_second:.4g} examples/s,"
            f" {self.bytes_per_second / 2**20:.3g} MiB/s; waited {share['waited']};"
            f" source {share['source']}; transform {share['transform']}; queue {self.queue}"
        )


@dataclass
class Times:
    """Seconds by what they were spent on; each is added to by one thread."""

    spent: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(
            ("waited", "source", "transform", "staging", "agreement", "transfer"), 0.0
        )
    )

    @contextlib.contextmanager
    def of(self, what: str) -> Generator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.spent[what] += time.perf_counter() - start


class Line:
    """The progress of one feeder on standard error; rich is loaded when there is one."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn

        columns: tuple[Any, ...] = (SpinnerColumn(), TextColumn("{task.description}"))
        self._progress = Progress(*columns, console=Console(stderr=True), auto_refresh=False)
        self._task = self._progress.add_task("", total=None)
        self._progress.start()
        self._next = 0.0

    def is_due(self) -> bool:
        return time.monotonic() >= self._next

    def show(self, words: str) -> None:
        self._progress.update(self._task, description=words)
        self._progress.refresh()
        self._next = time.monotonic() + _INTERVAL

    def end(self) -> None:
        self._progress.stop()
