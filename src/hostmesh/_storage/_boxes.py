"""Boxes of row-major tensors as runs of bytes: cut, merged, and how much is read in vain. Pure."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from .._plan import Bounds, Shape

# What the page cache reads at least.
_PAGE = 4096

# Runs of which at least two thirds of the pages are their own, wherever they begin.
LEAST_RUN = 4 * _PAGE

Span = tuple[int, int]

# The layers of a model have the same few shapes: what is asked of a box is kept.
_kept = functools.lru_cache(maxsize=4096)


@_kept
def strides_of(shape: Shape, itemsize: int) -> Shape:
    """Bytes from one row to the next along each dimension.

    >>> strides_of((2, 3, 4), 2)
    (24, 8, 2)
    """
    found: list[int] = []
    step = itemsize
    for size in reversed(shape):
        found.append(step)
        step *= size
    return tuple(reversed(found))


def is_empty(box: Bounds) -> bool:
    """Whether a box has no elements."""
    return any(a >= b for a, b in box)


def offset_of(shape: Shape, itemsize: int, box: Bounds) -> int:
    """The first byte of a box.

    >>> offset_of((4, 4), 2, ((1, 3), (2, 4)))
    12
    """
    return sum(a * s for (a, _), s in zip(box, strides_of(shape, itemsize), strict=True))


@_kept
def span_of(shape: Shape, itemsize: int, box: Bounds) -> Span:
    """The first byte of a box that is not empty, and the one after its last.

    >>> span_of((4, 4), 1, ((1, 3), (2, 4)))
    (6, 12)
    """
    strides = strides_of(shape, itemsize)
    last = sum((b - 1) * s for (_, b), s in zip(box, strides, strict=True))
    return offset_of(shape, itemsize, box), last + itemsize


@_kept
def run_of(shape: Shape, itemsize: int, box: Bounds) -> int:
    """How many bytes of a box lie together.

    >>> run_of((4, 4), 2, ((1, 3), (0, 4))), run_of((4, 4), 2, ((1, 3), (2, 4)))
    (16, 4)
    """
    length = itemsize
    for (a, b), size in zip(reversed(box), reversed(shape), strict=True):
        length *= b - a
        if b - a != size:
            break
    return length


def overlap(one: Bounds, other: Bounds) -> Bounds:
    """What two boxes have in common; it may be empty.

    >>> overlap(((0, 4), (0, 2)), ((1, 9), (0, 1)))
    ((1, 4), (0, 1))
    """
    return tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))


def within(box: Bounds, outer: Bounds) -> tuple[Any, ...]:
    """Where a box lies in the values of one around it: an index that always gives a view.

    >>> within(((3, 5), (0, 2)), ((2, 8), (0, 2)))
    (slice(1, 3, None), slice(0, 2, None), Ellipsis)
    """
    cuts = (slice(a - low, b - low) for (a, b), (low, _) in zip(box, outer, strict=True))
    return (*cuts, ...)


def elements(box: Bounds) -> int:
    """The number of elements of a box."""
    return math.prod(b - a for a, b in box)


def _gap(shape: Shape, itemsize: int, box: Bounds, first: int = 0) -> int:
    """The widest gap between bytes of a box, between rows along dimension `first` or later ones."""
    strides = strides_of(shape, itemsize)
    widest, inner = 0, itemsize
    for i in reversed(range(len(shape))):
        extent = box[i][1] - box[i][0]
        if extent > 1 and i >= first:
            widest = max(widest, strides[i] - inner)
        inner += (extent - 1) * strides[i]
    return widest


@_kept
def cut(shape: Shape, itemsize: int, box: Bounds, gap: int, largest: int) -> tuple[Bounds, ...]:
    """Cuts a box in parts whose spans have no gap above `gap` and are about `largest` at most.

    >>> cut((4, 4), 1, ((0, 4), (0, 2)), gap=1, largest=8)
    (((0, 1), (0, 2)), ((1, 2), (0, 2)), ((2, 3), (0, 2)), ((3, 4), (0, 2)))
    >>> cut((4, 4), 1, ((0, 4), (0, 2)), gap=2, largest=8)
    (((0, 2), (0, 2)), ((2, 4), (0, 2)))
    """
    return tuple(_cut(shape, itemsize, box, gap, largest))


def _cut(shape: Shape, itemsize: int, box: Bounds, gap: int, largest: int) -> Iterator[Bounds]:
    if is_empty(box):
        return
    start, stop = span_of(shape, itemsize, box)
    wide = _gap(shape, itemsize, box) > gap
    dimension = next((i for i, (a, b) in enumerate(box) if b - a > 1), None)
    if dimension is None or (stop - start <= largest and not wide):
        yield box
        return
    low, high = box[dimension]
    stride = strides_of(shape, itemsize)[dimension]
    row = (*box[:dimension], (low, low + 1), *box[dimension + 1 :])
    start, stop = span_of(shape, itemsize, row)
    step = 1 if wide else max(1, (largest - (stop - start)) // stride + 1)
    for a in range(low, high, step):
        part = (*box[:dimension], (a, min(a + step, high)), *box[dimension + 1 :])
        yield from _cut(shape, itemsize, part, gap, largest)


def merged(spans: Sequence[Span], gap: int, largest: int) -> list[tuple[Span, list[int]]]:
    """Spans put together across gaps of at most `gap`: what is read at once, and for which of them.

    Spans that overlap are read once. A part is longer than `largest` only where one span is.

    >>> merged([(20, 30), (0, 10), (12, 18)], gap=2, largest=25)
    [((0, 18), [1, 2]), ((20, 30), [0])]
    """
    found: list[tuple[Span, list[int]]] = []
    for number in sorted(range(len(spans)), key=lambda number: spans[number]):
        start, stop = spans[number]
        if found:
            (first, last), members = found[-1]
            end = max(last, stop)
            if start - last <= gap and (end - first <= largest or end == last):
                found[-1] = ((first, end), [*members, number])
                continue
        found.append(((start, stop), [number]))
    return found


@_kept
def pages_touched(shape: Shape, itemsize: int, box: Bounds) -> int:
    """About how many bytes the page cache reads for a box: whole pages, at most its span."""
    if is_empty(box):
        return 0
    start, stop = span_of(shape, itemsize, box)
    run = run_of(shape, itemsize, box)
    runs = elements(box) * itemsize // run
    return min(stop - start, runs * (-(-run // _PAGE) * _PAGE))
