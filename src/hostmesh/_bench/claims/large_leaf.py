"""One large leaf in. The bounds are one copy, into memory that is new and into memory that is warm."""

from __future__ import annotations

from pathlib import Path

from .._claim import Claim, Contestants, Race
from . import _given


def contestants(folder: Path, nbytes: int = _given.LARGE) -> Contestants:
    import numpy as np
    from jax.experimental import multihost_utils
    from jax.sharding import PartitionSpec

    import hostmesh

    mesh, leaf, spec = _given.mesh(), _given.large(nbytes), PartitionSpec(("x", "y"))
    warm = np.empty_like(leaf)
    return {
        "JAX": lambda: multihost_utils.host_local_array_to_global_array(leaf, mesh, spec),
        "hostmesh": lambda: hostmesh.to_global(leaf, mesh, spec),
        "numpy.copy": lambda: np.copy(leaf),
        "copy to warm": lambda: np.copyto(warm, leaf),
    }


CLAIMS = (
    Claim(
        "large_leaf",
        "one leaf of 64 MiB a process in",
        Race(contestants),
        peer="JAX",
        bar=2.5,
        bounds=("copy to warm",),
    ),
    Claim(
        "large_leaf_copy",
        "the same within 1.25 times numpy.copy's time",
        Race(contestants),
        peer="numpy.copy",
        bar=1 / 1.25,
    ),
)
