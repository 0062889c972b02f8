"""What the contestants of most races are given: a mesh of all devices, and leaves. In each process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from jax.sharding import Mesh

LARGE = 64 * 2**20  # bytes
LEAVES = 300


def mesh() -> Mesh:
    """All devices: an axis for the processes, and one for the devices of each."""
    import jax
    from jax.sharding import Mesh

    return Mesh(np.array(jax.devices()).reshape(jax.process_count(), -1), ("x", "y"))


def leaves(count: int = LEAVES) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
    """Leaves of 64x32: 8 KiB each."""
    return [np.random.rand(64, 32).astype(np.float32) for _ in range(count)]


def large(nbytes: int = LARGE) -> np.ndarray[Any, np.dtype[np.float32]]:
    """One leaf, the same in all processes.

    It lies 16 bytes past a multiple of 64, as NumPy's large allocations do. At a multiple JAX's own
    conversion takes the memory as it is, without a copy, and there would be nothing to compare.
    """
    memory = np.empty(nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + 16
    leaf = memory[start : start + nbytes].view(np.float32)
    leaf[:] = np.random.default_rng(0).random(len(leaf), np.float32)
    return leaf
