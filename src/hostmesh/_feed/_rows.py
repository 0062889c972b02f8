"""Which rows of the global batch each process feeds. Pure: from the plan alone."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from .._data_shard import data_shard
from .._topology import Topology


@dataclass(frozen=True)
class Rows:
    """The batch axis: its chunks, and those of each member, ascending.

    A process's rows fill its chunks in ascending order; where it has fewer, the last ones are
    filler.
    """

    members: tuple[int, ...]
    held: tuple[tuple[int, ...], ...]
    count: int  # of chunks
    chunk_rows: int

    @property
    def total(self) -> int:
        """Rows of the global batch."""
        return self.count * self.chunk_rows

    @property
    def capacities(self) -> tuple[int, ...]:
        """The most rows that each member feeds."""
        return tuple(len(held) * self.chunk_rows for held in self.held)

    def valid(self, rows: Sequence[int]) -> tuple[int, ...]:
        """How many rows of each chunk are no filler, where members feed so many.

        Raises `ValueError` with two members that hold one chunk and feed different rows of it.

        >>> Rows((0, 1), ((0, 2), (1, 3)), count=4, chunk_rows=3).valid([4, 6])
        (3, 3, 1, 3)
        """
        if tuple(rows) == self.capacities:
            return (self.chunk_rows,) * self.count
        found: dict[int, tuple[int, int]] = {}
        for member, held, own in zip(self.members, self.held, rows, strict=True):
            for rank, chunk in enumerate(held):
                valid = min(max(own - rank * self.chunk_rows, 0), self.chunk_rows)
                other, before = found.setdefault(chunk, (member, valid))
                if before != valid:
                    raise ValueError(other, member)
        return tuple(found[chunk][1] for chunk in range(self.count))


@functools.lru_cache(maxsize=256)
def rows_of(
    topology: Topology, axes: tuple[str, ...], members: tuple[int, ...], chunk_rows: int
) -> Rows:
    """The rows of a batch axis that is cut by `axes`, with so many rows a chunk."""
    shards = [data_shard(topology, (axes,), process=process) for process in members]
    return Rows(members, tuple(s.chunks for s in shards), shards[0].of_chunks, chunk_rows)
