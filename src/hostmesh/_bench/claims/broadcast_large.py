"""broadcast of a large value."""

from __future__ import annotations

from pathlib import Path

from .._claim import Claim, Contestants, Race
from . import _given


def contestants(folder: Path, nbytes: int = _given.LARGE) -> Contestants:
    import numpy as np
    from jax.experimental import multihost_utils

    import hostmesh

    value = _given.large(nbytes)
    return {
        "one copy": lambda: np.copy(value),
        "JAX": lambda: multihost_utils.broadcast_one_to_all(value),
        "hostmesh": lambda: hostmesh.broadcast(value),
    }


CLAIMS = (
    Claim(
        "broadcast_large",
        "broadcast of 64 MiB, against broadcast_one_to_all",
        Race(contestants),
        peer="JAX",
        bar=1.7,
        bounds=("one copy",),
        why="the bytes go by gloo over loopback, on the cores that all processes share",
    ),
)
