"""broadcast of many small leaves.

The bound: the same bytes by compiled programs and one copy of what comes, with no agreement or packing.
"""

from __future__ import annotations

from pathlib import Path

from .._claim import Claim, Contestants, Race
from . import _given


def contestants(folder: Path, count: int = _given.LEAVES) -> Contestants:
    import jax
    import numpy as np
    from jax.experimental import multihost_utils

    import hostmesh

    from ... import _transport

    leaves = _given.leaves(count)
    every, sends = tuple(range(jax.process_count())), jax.process_index() == 0
    nbytes = sum(leaf.nbytes for leaf in leaves)

    results = np.empty((1, nbytes), np.uint8)

    def take(rows: np.ndarray, start: int) -> None:
        results[:, start : start + rows.shape[1]] = rows

    def fill(part: np.ndarray, start: int) -> None:
        part[...] = 1

    def transport() -> None:
        _transport.broadcast(nbytes, every, 0, fill if sends else None, take)

    return {
        "bytes, one copy": transport,
        "JAX": lambda: multihost_utils.broadcast_one_to_all(leaves),
        "hostmesh": lambda: hostmesh.broadcast(leaves),
    }


CLAIMS = (
    Claim(
        "broadcast_leaves",
        "broadcast of 300 leaves of 64x32, against broadcast_one_to_all",
        Race(contestants),
        peer="JAX",
        bar=60,
        bounds=("bytes, one copy",),
        why="the bytes and one copy, the bound, take half of the time; the agreement takes the rest",
    ),
)
