"""Arrays end to end as one stream of bytes: read from where they lie, and written into new ones."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _staging
from ._kinds import ALIGNMENT, Kind, runs_of

Bytes = npt.NDArray[np.uint8]

# Arrays that come share blocks of up to this size: whoever holds one holds its block.
_BLOCK_BYTES = 1024 * 1024


def empty(kinds: Sequence[Kind], lead: tuple[int, ...] = ()) -> list[npt.NDArray[Any]]:
    """New arrays for such leaves, or for several of each along new first axes."""
    shapes = [lead + kind.shape for kind in kinds]
    return _staging.buffers(shapes, [kind.numpy for kind in kinds])


def stretches(array: npt.NDArray[Any], start: int, stop: int) -> Iterator[npt.NDArray[Any]]:
    """Views that cover the elements `start` to `stop`, in C order, of an array of any strides.

    >>> [part.tolist() for part in stretches(np.arange(12).reshape(4, 3), 1, 10)]
    [[1, 2], [[3, 4, 5], [6, 7, 8]], [9]]
    """
    if array.ndim < 2:
        yield array.reshape(-1)[start:stop]
        return
    row = math.prod(array.shape[1:])
    (first, head), (last, tail) = divmod(start, row), divmod(stop, row)
    if first == last:
        yield from stretches(array[first], head, tail)
        return
    if head:
        yield from stretches(array[first], head, row)
    whole = array[first + bool(head) : last]
    if len(whole):
        yield whole
    if tail:
        yield from stretches(array[last], 0, tail)


class Stream:
    """The bytes of several arrays end to end, read and written in pieces.

    The arrays stay where they are, whatever their strides; pieces begin and end between elements.
    """

    def __init__(self, arrays: Sequence[npt.NDArray[Any]]) -> None:
        self._arrays = arrays
        self._sizes = [array.nbytes for array in arrays]
        padded = [_staging.round_up(size, ALIGNMENT) for size in self._sizes]
        self._ends = list(itertools.accumulate(padded, initial=0))
        self.nbytes = self._ends[-1]
        # Arrays of one dtype with nothing between them, as the leaves of a model mostly are.
        self._dense = padded == self._sizes and len({array.dtype for array in arrays}) == 1

    def read(self, out: Bytes, start: int) -> None:
        """Fills `out` with the bytes that begin at `start`; past the end it leaves it as it is."""
        first = last = start  # between them, arrays that lie in `out` as a whole
        low = bisect.bisect_left(self._ends, start)
        high = bisect.bisect_right(self._ends, start + len(out)) - 1
        if self._dense and high - low > 1:
            first, last = self._ends[low], self._ends[high]
            whole = out[first - start : last - start].view(self._arrays[low].dtype)
            np.concatenate(self._arrays[low:high], axis=None, out=whole)
        self._read(out[: first - start], start)
        self._read(out[last - start :], last)

    def _read(self, out: Bytes, start: int) -> None:
        for number, low, high, place in self.spans(start, len(out)):
            for part in _between(self._arrays[number], low, high):
                out[place : place + part.nbytes].view(part.dtype).reshape(part.shape)[...] = part
                place += part.nbytes

    def write(self, piece: Bytes, start: int) -> None:
        """Writes a piece of the stream into the arrays."""
        for number, low, high, place in self.spans(start, len(piece)):
            for part in _between(self._arrays[number], low, high):
                part[...] = piece[place : place + part.nbytes].view(part.dtype).reshape(part.shape)
                place += part.nbytes

    def tobytes(self) -> bytes:
        """All of the stream, which is short."""
        return joined(self._arrays)

    def spans(self, start: int, length: int) -> Iterator[tuple[int, int, int, int]]:
        """The arrays that share bytes with a piece: number, first and last byte, place in the piece.

        >>> list(Stream([np.zeros(20, np.uint8), np.zeros(3)]).spans(start=16, length=24))
        [(0, 16, 20, 0), (1, 0, 8, 16)]
        """
        number = max(0, bisect.bisect_right(self._ends, start) - 1)
        while number < len(self._arrays) and (first := self._ends[number]) < start + length:
            low, high = max(start, first), min(start + length, first + self._sizes[number])
            if low < high:
                yield number, low - first, high - first, low - start
            number += 1


def _between(array: npt.NDArray[Any], low: int, high: int) -> Iterator[npt.NDArray[Any]]:
    """Views that cover some bytes of an array, in C order."""
    if array.flags.c_contiguous:
        yield array.reshape(-1).view(np.uint8)[low:high]
    else:
        yield from stretches(array, low // array.itemsize, high // array.itemsize)


def joined(arrays: Sequence[npt.NDArray[Any]]) -> bytes:
    """All of the stream of a few small arrays."""
    return b"".join(
        array.tobytes().ljust(_staging.round_up(array.nbytes, ALIGNMENT), b"\0") for array in arrays
    )


class Landing:
    """New arrays for leaves of some kinds, into which their stream is written as it comes.

    With `rows`, as many streams of one layout side by side; each array has a first axis of that
    size. Leaves of one kind that follow each other share blocks of memory, and are written as one.
    """

    def __init__(self, kinds: Sequence[Kind], rows: int | None = None) -> None:
        lead = () if rows is None else (rows,)
        runs: list[tuple[Kind, int]] = []
        for kind, count in runs_of(kinds):
            most = max(1, _BLOCK_BYTES // max(1, kind.nbytes * (rows or 1)))
            runs += [(kind, min(most, count - done)) for done in range(0, count, most)]
        shapes = [(count, *lead, *kind.shape) for kind, count in runs]
        blocks = _staging.buffers(shapes, [kind.numpy for kind, _ in runs])
        self.arrays = [block[number, ...] for block in blocks for number in range(len(block))]
        # Each block as bytes, by leaf, row and byte of the leaf; and what a leaf takes in a stream.
        self._blocks = [
            (block.reshape(-1).view(np.uint8).reshape(count, rows or 1, -1), kind.padded)
            for block, (kind, count) in zip(blocks, runs, strict=True)
            if block.size
        ]
        lengths = (len(block) * padded for block, padded in self._blocks)
        self._ends = list(itertools.accumulate(lengths, initial=0))
        self.nbytes = self._ends[-1]

    def write(self, piece: Bytes, start: int) -> None:
        """Writes a piece of each row's stream, `piece[row]`, into the arrays."""
        number = max(0, bisect.bisect_right(self._ends, start) - 1)
        stop = start + piece.shape[1]
        while number < len(self._blocks) and (first := self._ends[number]) < stop:
            low, high = max(start, first), min(stop, self._ends[number + 1])
            _write_leaves(*self._blocks[number], piece[:, low - start : high - start], low - first)
            number += 1


def _write_leaves(block: Bytes, padded: int, piece: Bytes, low: int) -> None:
    """Writes what begins at byte `low` of the streams of a block's leaves, and does not pass them."""
    number, inside = divmod(low, padded)
    if inside:  # the rest of a leaf
        part = piece[:, : padded - inside]
        _write_leaf(block[number, :, inside:], part)
        number, piece = number + 1, piece[:, padded - inside :]
    whole = piece.shape[1] // padded
    many = piece[:, : whole * padded].reshape(len(piece), whole, padded)
    block[number : number + whole] = many[:, :, : block.shape[2]].transpose(1, 0, 2)
    if rest := piece.shape[1] % padded:
        _write_leaf(block[number + whole], piece[:, -rest:])


def _write_leaf(leaf: Bytes, part: Bytes) -> None:
    """Writes as much of a part as belongs to a leaf, of which it may be only the beginning."""
    leaf[:, : part.shape[1]] = part[:, : leaf.shape[1]]
