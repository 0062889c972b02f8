"""allgather of a large value."""

from __future__ import annotations

from pathlib import Path

from .._claim import Claim, Contestants, Race
from . import _given


def contestants(folder: Path, nbytes: int = _given.LARGE) -> Contestants:
    import jax
    import numpy as np
    from jax.experimental import multihost_utils

    import hostmesh

    value = _given.large(nbytes)
    every = [value] * jax.process_count()
    return {
        "one copy": lambda: np.stack(every),
        "JAX": lambda: multihost_utils.process_allgather(value),
        "hostmesh": lambda: hostmesh.allgather(value),
    }


CLAIMS = (
    Claim(
        "allgather_large",
        "allgather of 64 MiB from each process, against process_allgather",
        Race(contestants),
        peer="JAX",
        bar=2,
        bounds=("one copy",),
        why="the bytes go by gloo over loopback, on the cores that all processes share",
    ),
)
