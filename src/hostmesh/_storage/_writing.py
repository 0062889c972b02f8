"""Moves bytes from devices and host arrays to their places in files, by the shares of a plan."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .. import _jax, _staging
from .._plan import Bounds, bounds
from ._runs import runs
from ._shares import Piece, Tensor, batches, size_of

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
        if isinstance(value, np.ndarray):
            self._parts.append((tuple((0, size) for size in value.shape), value))
            return
        indices = value.sharding.addressable_devices_indices_map(value.shape)
        on = _jax.parts_by_device(value)
        distinct = {bounds(index, value.shape): device for device, index in indices.items()}
        self._parts += [(place, on[device]) for place, device in distinct.items()]
        self._dtype = np.dtype(value.dtype)

    def start(self, place: Bounds) -> None:
        """Has devices begin to send what a place needs."""
        for part, _ in self._on(place):
            if not isinstance(part, np.ndarray):
                part.copy_to_host_async()

    def read(self, place: Bounds) -> HostArray:
        """The values at a place, C-ordered; views of memory that is there already where it can be."""
        found = self._on(place)
        if len(found) == 1:
            part, inside = found[0]
            values = _host(part)[_slices(place, inside)]
            if values.flags.c_contiguous:
                return values
        shape = tuple(stop - start for start, stop in place)
        out = _staging.buffer(shape, _host(found[0][0]).dtype)
        for part, inside in found:
            common = _overlap(place, inside)
            out[_slices(common, place)] = _host(part)[_slices(common, inside)]
        return out

    def _on(self, place: Bounds) -> list[tuple[Any, Bounds]]:
        return [
            (part, inside)
            for inside, part in self._parts
            if all(a < b for a, b in _overlap(place, inside))
        ]


def _host(part: Any) -> HostArray:
    return part if isinstance(part, np.ndarray) else _jax.fetch(part)


def _overlap(one: Bounds, other: Bounds) -> Bounds:
    return tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))


def _slices(place: Bounds, inside: Bounds) -> Any:
    cuts = (slice(a - c, b - c) for (a, b), (c, _) in zip(place, inside, strict=True))
    return (*cuts, ...)


def blocks(tensors: Sequence[Tensor], pieces: Iterable[Piece], values: Any) -> Iterator[Block]:
    """The bytes of pieces, read as they are asked for. `values` are the tensors' by number."""
    known, source = -1, Source(np.zeros(()))
    for piece in pieces:
        if piece.tensor != known:
            known, source = piece.tensor, Source(values[piece.tensor])
        for place in batches(piece.place, max(1, _BATCH_BYTES // tensors[known].itemsize)):
            data = source.read(place).reshape(-1).view(np.uint8)
            yield Block(Piece(known, place), data)


def copied(tensors: Sequence[Tensor], pieces: Sequence[Piece], values: Any) -> list[Block]:
    """`blocks`, all of them, in host memory that nobody else writes or frees: from the pool."""
    places = [
        (piece.tensor, place)
        for piece in pieces
        for place in batches(piece.place, max(1, _BATCH_BYTES // tensors[piece.tensor].itemsize))
    ]
    sizes = [(size_of(place) * tensors[number].itemsize,) for number, place in places]
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
