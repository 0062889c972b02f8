"""Arrays in a store of chunks: which chunk shape, and which process writes which chunk. Pure.

No two processes write to one chunk of the store: a chunk is a file, which is written whole.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from .._plan import Bounds, Shape
from ._boxes import elements, is_empty, overlap
from ._shares import Box, Holders

# About how large a chunk is where nobody says.
CHUNK_BYTES = 16 * 2**20


def chunk_shape(shard: Shape, itemsize: int) -> Shape:
    """A chunk shape that cuts every shard evenly, of at most about `CHUNK_BYTES`.

    The first axes are cut first, so that what a chunk holds lies together in a shard.

    >>> chunk_shape((1024, 8192), itemsize=4)
    (512, 8192)
    """
    sizes = [max(1, size) for size in shard]
    for axis, size in enumerate(sizes):
        most = CHUNK_BYTES // (math.prod(sizes[:axis] + sizes[axis + 1 :]) * itemsize)
        if most >= size:
            break
        sizes[axis] = next(n for n in range(max(1, most), 0, -1) if size % n == 0)
    return tuple(sizes)


def grid(shape: Shape, chunk: Shape) -> Iterator[Bounds]:
    """The places of all chunks of an array."""
    cuts = [
        [(a, min(a + step, size)) for a in range(0, size, step)]
        for size, step in zip(shape, chunk, strict=True)
    ]
    return itertools.product(*cuts)


def holders_of(place: Bounds, boxes: Sequence[Box]) -> Holders:
    """The processes each of which holds all of a place; boxes may be of one process or of several."""
    held: defaultdict[int, int] = defaultdict(int)
    for box in boxes:
        common = overlap(place, box.place)
        if not is_empty(common):
            for process in box.holders:
                held[process] += elements(common)
    # Boxes do not overlap: each element is in one.
    return tuple(sorted(process for process, n in held.items() if n == elements(place)))


def deal(
    items: Mapping[tuple[int, Bounds], Holders], itemsizes: Sequence[int]
) -> dict[tuple[int, Bounds], int]:
    """Who writes each item, a chunk of an array: those with the least choice first, then evenly.

    >>> deal({(0, ((0, 2),)): (0, 1), (0, ((2, 4),)): (0,)}, itemsizes=[4])
    {(0, ((2, 4),)): 0, (0, ((0, 2),)): 1}
    """
    loads: defaultdict[int, int] = defaultdict(int)
    writers: dict[tuple[int, Bounds], int] = {}
    for item in sorted(items, key=lambda item: (len(items[item]), item)):
        number, place = item
        writer = min(items[item], key=lambda process: (loads[process], process))
        loads[writer] += elements(place) * itemsizes[number]
        writers[item] = writer
    return writers
