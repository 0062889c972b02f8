"""Moves bytes from devices and host arrays to their places in files, by the shares of a plan."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np
import numpy.typing as npt

from .. import _jax, _staging
from .._plan import Bounds, bounds
from ._boxes import elements, is_empty, overlap, within
from ._runs import runs
from ._shares import Piece, Tensor, batches

Bytes: TypeAlias = npt.NDArray[np.uint8]
HostArray: TypeAlias = npt.NDArray[Any]

# What is put together from several shards, or fetched from a device, at a time.
_BATCH_BYTES = 8 * 2**20
# The system takes no more buffers in one call.
_MOST_BUFFERS = 1024


@dataclass(frozen=True)
class Block:
    """A part of a tensor and its bytes, row-major."""

    piece: Piece
    data: Bytes


class Source:
    """The values of one tensor on this process: an array on devices, or a host array that is whole."""

    def __init__(self, value: Any) -> None:
        self._parts: list[tuple[Bounds, Any]] = []
        self._fetched: dict[Bounds, HostArray] = {}
        if isinstance(value, np.ndarray):
            self._parts.append((tuple((0, size) for size in value.shape), value))
            return
        indices = value.sharding.addressable_devices_indices_map(value.shape)
        on = _jax.parts_by_device(value)
        distinct = {bounds(index, value.shape): device for device, index in indices.items()}
        self._parts += [(place, on[device]) for place, device in distinct.items()]

    def at(self, place: Bounds) -> list[tuple[Bounds, HostArray]]:
        """Host arrays that cover a place together, and where each lies."""
        found: list[tuple[Bounds, HostArray]] = []
        for inside, part in self._parts:
            common = overlap(place, inside)
            if is_empty(common):
                continue
            if isinstance(part, np.ndarray):
                found.append((inside, part))
            elif _is_slow(part) and 2 * elements(common) < elements(inside):
                starts = [a - c for (a, _), (c, _) in zip(common, inside, strict=True)]
                cut = jax.lax.dynamic_slice(part, starts, [b - a for a, b in common])
                found.append((common, _jax.fetch(cut)))
            else:
                if inside not in self._fetched:
                    self._fetched[inside] = _jax.fetch(part)
                found.append((inside, self._fetched[inside]))
        return found


def _is_slow(part: jax.Array) -> bool:
    """Whether bytes of a part that nobody asked for cost more than a program that cuts it."""
    return part.nbytes > _BATCH_BYTES and next(iter(part.devices())).platform != "cpu"


def gathered(place: Bounds, found: Sequence[tuple[Bounds, HostArray]]) -> HostArray:
    """The values at a place, C-ordered, of arrays that cover it: a view of one of them if it can be."""
    here = [(overlap(place, inside), inside, values) for inside, values in found]
    here = [part for part in here if not is_empty(part[0])]
    if len(here) == 1:
        values = here[0][2][within(place, here[0][1])]
        if values.flags.c_contiguous:
            return values
    out = _staging.buffer(tuple(b - a for a, b in place), here[0][2].dtype)
    for common, inside, values in here:
        out[within(common, place)] = values[within(common, inside)]
    return out


def blocks(tensors: Sequence[Tensor], pieces: Iterable[Piece], values: Any) -> Iterator[Block]:
    """The bytes of pieces, read as they are asked for. `values` are the tensors' by number."""
    known, source = -1, Source(np.zeros(()))
    for piece in pieces:
        if piece.tensor != known:
            known, source = piece.tensor, Source(values[piece.tensor])
        found = source.at(piece.place)
        for place in batches(piece.place, _most(tensors[known])):
            yield Block(Piece(known, place), gathered(place, found).reshape(-1).view(np.uint8))


def _most(tensor: Tensor) -> int:
    return max(1, _BATCH_BYTES // tensor.itemsize)


def copied(tensors: Sequence[Tensor], pieces: Sequence[Piece], values: Any) -> list[Block]:
    """`blocks`, all of them, in host memory that nobody else writes or frees: from the pool."""
    places = [
        (piece.tensor, place)
        for piece in pieces
        for place in batches(piece.place, _most(tensors[piece.tensor]))
    ]
    sizes = [(elements(place) * tensors[number].itemsize,) for number, place in places]
    targets = _staging.buffers(sizes, [np.dtype(np.uint8)] * len(sizes))
    made: list[Block] = []
    for block, target in zip(blocks(tensors, pieces, values), targets, strict=True):
        np.copyto(target, block.data)
        made.append(Block(block.piece, target))
    return made


def write(
    tensors: Sequence[Tensor],
    made: Iterable[Block],
    descriptor: Callable[[int], int],
    done: Callable[[int], None],
) -> int:
    """Writes blocks into their files; `done` hears of the bytes so far. Returns how many there were.

    `descriptor` gives the open file of a number. What lies together in a file goes in one call.
    """
    total = 0
    waiting: list[Bytes] = []
    nbytes, file, begin = 0, -1, 0

    def flush() -> None:
        nonlocal total, nbytes
        if waiting:
            write_all(descriptor(file), waiting, begin)
            total += nbytes
            done(total)
        waiting.clear()
        nbytes = 0

    for block in made:
        tensor = tensors[block.piece.tensor]
        length, starts = runs(tensor, block.piece)
        if len(starts) > 1:
            flush()
            _write_runs(descriptor(tensor.file), block.data, length, starts.tolist())
            total += block.data.nbytes
            done(total)
            continue
        start = int(starts[0])
        if (
            tensor.file != file
            or begin + nbytes != start
            or nbytes >= _BATCH_BYTES
            or len(waiting) == _MOST_BUFFERS
        ):
            flush()
            file, begin = tensor.file, start
        waiting.append(block.data)
        nbytes += length
    flush()
    return total


def _write_runs(descriptor: int, data: Bytes, length: int, starts: list[int]) -> None:
    view = data.data
    pwrite = os.pwrite
    at = 0
    for start in starts:
        if pwrite(descriptor, view[at : at + length], start) != length:
            # What is left of it, or the error that cut it off.
            write_all(descriptor, [data[at : at + length]], start)
        at += length


def write_all(descriptor: int, buffers: Sequence[Bytes], start: int) -> None:
    """Writes buffers one after the other, however little the system takes at a time."""
    left = [buffer.data for buffer in buffers if buffer.nbytes]
    while left:
        wrote = os.pwritev(descriptor, left, start)
        start += wrote
        while left and wrote >= len(left[0]):
            wrote -= len(left.pop(0))
        if wrote:
            left[0] = left[0][wrote:]
