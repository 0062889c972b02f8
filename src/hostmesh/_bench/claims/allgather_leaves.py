"""allgather of many small leaves.

The bound: the same bytes by compiled programs and one copy of what comes, with no agreement or packing.
"""

from __future__ import annotations

from pathlib import Path

from .._claim import Claim, Contestants, Race
from . import _given


def contestants(folder: Path) -> Contestants:
    import jax
    import numpy as np
    from jax.experimental import multihost_utils

    import hostmesh

    from ... import _transport

    leaves = _given.leaves()
    every = tuple(range(jax.process_count()))
    nbytes = sum(leaf.nbytes for leaf in leaves)

    results = np.empty((len(every), nbytes), np.uint8)

    def take(rows: np.ndarray, start: int) -> None:
        results[:, start : start + rows.shape[1]] = rows

    def fill(part: np.ndarray, start: int) -> None:
        part[...] = 1

    return {
        "bytes, one copy": lambda: _transport.allgather(nbytes, every, fill, take),
        "JAX": lambda: multihost_utils.process_allgather(leaves),
        "hostmesh": lambda: hostmesh.allgather(leaves),
    }


CLAIMS = (
    Claim(
        "allgather_leaves",
        "allgather of 300 leaves of 64x32, against process_allgather",
        Race(contestants),
        peer="JAX",
        bar=100,
        bounds=("bytes, one copy",),
        why="the bytes and one copy, the bound, take most of the time: 100 times is out of their reach",
    ),
)
