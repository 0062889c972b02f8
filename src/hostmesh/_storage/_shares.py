"""Who writes which part of which tensor: decided by layouts and sizes alone, without a message.

What several processes hold is split over them so that all write about as many bytes, in pieces
that are runs of elements in the tensor's row-major order. Pure: each process plans the same.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from jax.sharding import Sharding

from .._plan import Bounds, Shape, bounds
from ._boxes import elements, offset_of, run_of

Holders: TypeAlias = tuple[int, ...]

# A cut between two processes moves by up to so many bytes to where a tensor or a row ends.
LEAST_BYTES = 64 * 1024
# And otherwise to the end of a page, which two hosts then do not share.
_PAGE = 4096
_SWEEPS = 64


@dataclass(frozen=True)
class Box:
    """A part of a tensor, of which each of the `holders` holds all."""

    place: Bounds
    holders: Holders


@dataclass(frozen=True)
class Tensor:
    """A tensor in a file: `start` is where its first byte lies, in file number `file`."""

    shape: Shape
    itemsize: int
    file: int
    start: int
    boxes: tuple[Box, ...]


@dataclass(frozen=True)
class Piece:
    """A part of tensor number `tensor` that one process writes."""

    tensor: int
    place: Bounds


@functools.lru_cache(maxsize=1024)
def boxes_of(sharding: Sharding, shape: Shape) -> tuple[Box, ...]:
    """The parts of an array of some shape, with the processes that hold them; none if it is empty."""
    held: defaultdict[Bounds, set[int]] = defaultdict(set)
    for device, index in sharding.devices_indices_map(shape).items():
        held[bounds(index, shape)].add(device.process_index)
    together: defaultdict[Holders, list[Bounds]] = defaultdict(list)
    for place, processes in held.items():
        if elements(place):
            together[tuple(sorted(processes))].append(place)
    found = [Box(place, who) for who, places in together.items() for place in merged(places)]
    return tuple(sorted(found, key=lambda box: (box.place, box.holders)))


def merged(places: Iterable[Bounds]) -> list[Bounds]:
    """Places that touch, joined to larger ones: columns to rows first, which lie together in a file.

    >>> merged([((0, 2), (0, 4)), ((0, 2), (4, 8)), ((2, 4), (0, 8))])
    [((0, 4), (0, 8))]
    """
    joined = sorted(places)
    for axis in reversed(range(len(joined[0]) if joined else 0)):
        rows: defaultdict[Bounds, list[tuple[int, int]]] = defaultdict(list)
        for place in joined:
            cuts = rows[place[:axis] + place[axis + 1 :]]
            if cuts and cuts[-1][1] == place[axis][0]:
                cuts[-1] = (cuts[-1][0], place[axis][1])
            else:
                cuts.append(place[axis])
        joined = sorted(
            (*rest[:axis], cut, *rest[axis:]) for rest, cuts in rows.items() for cut in cuts
        )
    return joined


def share_out(tensors: Sequence[Tensor]) -> dict[int, list[Piece]]:
    """The pieces that each process writes, in the order of `tensors`; each element is in one piece."""
    streams: defaultdict[Holders, list[tuple[int, Box]]] = defaultdict(list)
    for number, tensor in enumerate(tensors):
        for box in tensor.boxes:
            streams[box.holders].append((number, box))
    totals = {
        holders: sum(elements(box.place) * tensors[number].itemsize for number, box in stream)
        for holders, stream in streams.items()
    }
    quotas = level(totals)
    split = sum(len(holders) > 1 for holders in totals)
    writers = {process for holders in totals for process in holders}
    mean = sum(totals.values()) // max(1, len(writers))
    # Cuts that move leave every process within a twentieth of the mean.
    slack = min(LEAST_BYTES, mean // (40 * max(1, split)))
    pieces: dict[int, list[Piece]] = {process: [] for process in sorted(writers)}
    for holders, stream in streams.items():
        for process, piece in _cut(tensors, stream, holders, quotas[holders], slack):
            pieces[process].append(piece)
    for own in pieces.values():
        own.sort(key=lambda piece: piece.tensor)  # stable: within a tensor they are in order
    return pieces


def level(totals: Mapping[Holders, int]) -> dict[Holders, list[int]]:
    """How much of each total each of its holders takes, so that the largest load is the least.

    Each total is poured over its holders as water, which settles at one level where it can; then
    again and again, each on top of the others. That is descent by blocks on the sum of squares of
    the loads, whose minimum also has the least maximum.

    >>> level({(0,): 60, (0, 1): 100, (1, 2): 50})
    {(0,): [60], (0, 1): [20, 80], (1, 2): [0, 50]}
    """
    loads: defaultdict[int, int] = defaultdict(int)
    taken: dict[Holders, list[int]] = {}
    order = sorted(totals, key=lambda holders: (len(holders), holders))
    close = sum(totals.values()) // 1000
    for sweep in range(_SWEEPS):
        moved = 0
        for holders in order if sweep == 0 else [h for h in order if len(h) > 1]:
            before = taken.get(holders, [0] * len(holders))
            for process, amount in zip(holders, before, strict=True):
                loads[process] -= amount
            after = _pour(totals[holders], [loads[process] for process in holders])
            for process, amount in zip(holders, after, strict=True):
                loads[process] += amount
            moved += sum(abs(a - b) for a, b in zip(after, before, strict=True))
            taken[holders] = after
        if moved <= close:
            break
    return {holders: taken[holders] for holders in totals}


def _pour(total: int, levels: Sequence[int]) -> list[int]:
    order = sorted(range(len(levels)), key=lambda i: (levels[i], i))
    filled, surface, below = 0, 0, 0
    for filled, i in enumerate(order, 1):
        below += levels[i]
        surface = -(-(total + below) // filled)
        if filled == len(order) or surface <= levels[order[filled]]:
            break
    amounts = [0] * len(levels)
    left = total
    for i in order[:filled]:
        amounts[i] = min(left, max(0, surface - levels[i]))
        left -= amounts[i]
    return amounts


def _cut(
    tensors: Sequence[Tensor],
    stream: Sequence[tuple[int, Box]],
    holders: Holders,
    quotas: Sequence[int],
    slack: int,
) -> Iterator[tuple[int, Piece]]:
    """Cuts boxes, end to end, into a run for each holder."""
    ends: list[int] = []
    for quota in quotas[:-1]:
        ends.append((ends[-1] if ends else 0) + quota)
    at, writer = 0, 0
    for number, box in stream:
        tensor = tensors[number]
        size = elements(box.place) * tensor.itemsize
        done = 0
        while done < size:
            while writer < len(ends) and ends[writer] <= at:
                writer += 1
            stop = size
            if writer < len(ends) and ends[writer] < at + size - done:
                stop = _good_cut(tensor, box, done, done + ends[writer] - at, size, slack)
                # What a cut moves by is the next holder's.
                ends[writer] = at + stop - done
            if stop > done:
                first, last = done // tensor.itemsize, stop // tensor.itemsize
                for place in within(box.place, first, last):
                    yield holders[writer], Piece(number, place)
                at, done = at + stop - done, stop


def _good_cut(tensor: Tensor, box: Box, first: int, wanted: int, size: int, slack: int) -> int:
    """The byte of a box, from `first` to `size`, at which to cut it: near `wanted`."""
    if min(wanted - first, size - wanted) <= slack:
        return first if wanted - first <= size - wanted else size
    sizes = [stop - start for start, stop in box.place]
    # From large parts of the box to small ones, the first whose end is near.
    for axis in range(1, len(sizes) + 1):
        step = math.prod(sizes[axis:]) * tensor.itemsize
        near = (wanted + step // 2) // step * step
        if abs(near - wanted) <= slack and first < near < size and step > tensor.itemsize:
            return near
    start = tensor.start + offset_of(tensor.shape, tensor.itemsize, box.place)
    if run_of(tensor.shape, tensor.itemsize, box.place) == size and slack >= _PAGE:
        near = (start + wanted) // _PAGE * _PAGE - start
        if near > first and near % tensor.itemsize == 0:
            return near
    return max(first, wanted // tensor.itemsize * tensor.itemsize)


def within(box: Bounds, first: int, last: int) -> Iterator[Bounds]:
    """The places of a box's elements from number `first` to `last`, in row-major order.

    >>> list(within(((0, 3), (4, 8)), 2, 9))
    [((0, 1), (6, 8)), ((1, 2), (4, 8)), ((2, 3), (4, 5))]
    """
    if first >= last:
        return
    if not box:
        yield ()
        return
    (low, _), *rest = box
    inner = tuple(rest)
    row = elements(inner)
    (i, head), (j, tail) = divmod(first, row), divmod(last, row)
    if i == j:
        for place in within(inner, head, tail):
            yield ((low + i, low + i + 1), *place)
        return
    if head:
        for place in within(inner, head, row):
            yield ((low + i, low + i + 1), *place)
        i += 1
    if i < j:
        yield ((low + i, low + j), *inner)
    if tail:
        for place in within(inner, 0, tail):
            yield ((low + j, low + j + 1), *place)


def batches(place: Bounds, most: int) -> Iterator[Bounds]:
    """A place in parts of at most `most` elements, cut at the ends of rows where those are shorter.

    >>> list(batches(((0, 5), (0, 2)), 5))
    [((0, 2), (0, 2)), ((2, 4), (0, 2)), ((4, 5), (0, 2))]
    """
    size, step = elements(place), max(1, most)
    for axis in range(1, len(place) + 1):
        row = elements(place[axis:])
        if row <= step:
            step = step // row * row
            break
    for first in range(0, size, step):
        yield from within(place, first, min(size, first + step))
