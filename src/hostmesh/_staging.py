"""Aligned host buffers that a CPU device takes as they are, kept for reuse when it lets go of them.

Fresh memory costs more in page faults than the copy into it. A buffer that JAX has taken comes back
here when the last array on it is gone, as in PyTorch's caching host allocator.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ._config import config

Buffer = npt.NDArray[np.uint8]

# XLA's CPU client takes a host buffer without a copy where its address is a multiple of this.
ALIGNMENT = 64
# Below this size a fresh allocation costs less than the care of a buffer.
POOLED_BYTES = 64 * 1024
# Arrays below it share blocks of this size.
_BLOCK_BYTES = 1024 * 1024


class _Lease(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """A buffer handed out. Views on it keep it alive; its end gives the memory back."""


class _Pool:
    def __init__(self) -> None:
        self._free: defaultdict[int, list[Buffer]] = defaultdict(list)
        self._idle = 0
        # Finalizers run wherever the last reference dies, also inside a locked region here.
        self._lock = threading.RLock()

    def lease(self, nbytes: int) -> Buffer:
        size = _size_class(nbytes)
        with self._lock:
            memory = self._free[size].pop() if self._free.get(size) else None
            if memory is not None:
                self._idle -= size
        if memory is None:
            memory = _aligned(size)
        leased = memory.view(_Lease)
        weakref.finalize(leased, self._release, memory).atexit = False
        return leased[:nbytes]

    def _release(self, memory: Buffer) -> None:
        with self._lock:
            if self._idle + memory.nbytes <= config.pool_bytes:
                self._free[memory.nbytes].append(memory)
                self._idle += memory.nbytes

    def clear(self) -> None:
        with self._lock:
            self._free.clear()
            self._idle = 0


def _size_class(nbytes: int) -> int:
    """`nbytes` rounded up by at most an eighth, so that nearly equal sizes share buffers."""
    return round_up(nbytes, max(4096, 1 << max(0, nbytes.bit_length() - 4)))


def round_up(number: int, step: int) -> int:
    """The smallest multiple of `step` that is not below `number`."""
    return -(-number // step) * step


def _aligned(nbytes: int) -> Buffer:
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + nbytes]


_POOL = _Pool()


def buffer(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """A C-ordered array of undefined contents: a large one aligned, its memory the pool's."""
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < POOLED_BYTES:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, buffer=_POOL.lease(nbytes))


def buffers(
    shapes: Sequence[tuple[int, ...]], dtypes: Sequence[np.dtype[Any]]
) -> list[npt.NDArray[Any]]:
    """`buffer` for each; small ones lie side by side in blocks of the pool.

    Many small arrays cost the page faults of one large one. Whoever holds one holds its block.
    """
    sizes = [math.prod(s) * d.itemsize for s, d in zip(shapes, dtypes, strict=True)]
    small = sum(round_up(size, ALIGNMENT) for size in sizes if size < POOLED_BYTES)
    block, used = np.empty(0, np.uint8), 0
    found: list[npt.NDArray[Any]] = []
    for shape, dtype, size in zip(shapes, dtypes, sizes, strict=True):
        if size >= POOLED_BYTES or used + size > len(block):
            if size >= POOLED_BYTES or small < POOLED_BYTES:
                found.append(buffer(shape, dtype))
                continue
            block, used = _POOL.lease(min(small, _BLOCK_BYTES)), 0
        found.append(np.ndarray(shape, dtype, buffer=block, offset=used))
        taken = round_up(size, ALIGNMENT)
        used, small = used + taken, small - taken
    return found


def clear() -> None:
    """Frees the buffers that are kept for reuse."""
    _POOL.clear()
