"""Which examples each global batch holds: the plan of a sampler, from some place on.

The order of an epoch is a permutation that depends on seed and epoch alone. Global batches are
consecutive runs of it, and a process's rows of a batch are those of its chunks: nothing else here
knows of processes.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ._data_shard import DataShard
from ._errors import ShapeError, build
from ._permutation import Indices, permuted

Ends: TypeAlias = Literal["drop", "pad", "short", "error"]


class Place(NamedTuple):
    """Where a global batch lies: at `start` in the order of `epoch`, with `size` examples."""

    epoch: int
    start: int
    size: int


@dataclass(frozen=True)
class Schedule:
    """The global batches from example number `examples` of epoch `epoch` on, numbered from 0."""

    n: int
    global_batch: int
    shard: DataShard
    shuffle: bool
    seed: int
    epochs: int | None
    ends: Ends
    epoch: int = 0
    examples: int = 0

    def at(self, epoch: int, examples: int) -> Schedule:
        """The same from another place on; from the next epoch where this one has no batch left.

        Raises `ShapeError` with `ends="error"` where whole batches do not end with the epoch.
        """
        if self.ends == "error" and (self.n - examples) % self.global_batch:
            raise build(
                ShapeError,
                where="ShardedSampler",
                given=f"ends='error', {self.n - examples} examples to the end of epoch {epoch},"
                f" global_batch={self.global_batch}",
                rule=f"{self.n - examples} % {self.global_batch} ="
                f" {(self.n - examples) % self.global_batch} examples would be left over",
                advice="choose a batch size that divides it, or another way to end",
            )
        if not self._left(examples):
            return self.at(epoch + 1, 0)
        return dataclasses.replace(self, epoch=epoch, examples=examples)

    @functools.cached_property
    def rows(self) -> npt.NDArray[np.int64]:
        """This process's rows of a whole global batch."""
        return self.shard.rows(self.global_batch)

    @property
    def total(self) -> int | None:
        """The number of global batches; `None` without end."""
        if self.epochs is None:
            return None
        return self.first_of(self.epochs) if self.epoch < self.epochs else 0

    def first_of(self, epoch: int) -> int:
        """The number of the first global batch of an epoch, this one's or a later one."""
        if epoch == self.epoch:
            return 0
        return self._left(self.examples) + (epoch - self.epoch - 1) * self._left(0)

    def place(self, batch: int) -> Place:
        """Where a global batch lies. Raises `IndexError` for one that there is not."""
        if batch < 0 or (self.total is not None and batch >= self.total):
            raise IndexError(f"global batch {batch} of {self.total}")
        epoch, start = self.epoch, self.examples + batch * self.global_batch
        if (later := batch - self._left(self.examples)) >= 0:
            epochs, batch = divmod(later, self._left(0))
            epoch, start = epoch + 1 + epochs, batch * self.global_batch
        return Place(epoch, start, min(self.global_batch, self.n - start))

    def mask(self, batch: int) -> npt.NDArray[np.bool_]:
        """Which of this process's rows of a global batch are examples, and not past the end."""
        return self.rows < self.place(batch).size

    def positions(self, batch: int) -> Indices:
        """The places in the epoch's order of the examples in this process's rows."""
        _, start, size = self.place(batch)
        rows = self.rows
        if size < self.global_batch and self.ends == "short":
            rows = rows[rows < size]
        positions = start + rows
        return positions if size == self.global_batch else positions % self.n

    def indices(self, batch: int) -> Indices:
        """The examples in this process's rows of a global batch."""
        positions = self.positions(batch)
        if not self.shuffle:
            return positions
        return permuted(positions, self.n, self.seed, self.place(batch).epoch)

    def _left(self, examples: int) -> int:
        """How many batches an epoch has after this many examples."""
        left = self.n - examples
        return left // self.global_batch if self.ends == "drop" else -(-left // self.global_batch)
