"""One small leaf in and back: no slower than JAX."""

from __future__ import annotations

from pathlib import Path

from .._claim import Claim, Contestants, Race
from . import _given


def contestants(folder: Path) -> Contestants:
    import numpy as np
    from jax.experimental import multihost_utils
    from jax.sharding import PartitionSpec

    import hostmesh

    mesh, spec = _given.mesh(), PartitionSpec(("x", "y"))
    leaf = np.arange(64, dtype=np.int32)
    array = hostmesh.to_global(leaf, mesh, spec)
    return {
        "JAX in": lambda: multihost_utils.host_local_array_to_global_array(leaf, mesh, spec),
        "hostmesh in": lambda: hostmesh.to_global(leaf, mesh, spec),
        "JAX back": lambda: multihost_utils.global_array_to_host_local_array(array, mesh, spec),
        "hostmesh back": lambda: hostmesh.to_local(array, mesh, spec),
    }


_RACE = Race(contestants, calls=10)
CLAIMS = (
    Claim(
        "small_leaf_in",
        "one leaf of 64 int32 in, no slower",
        _RACE,
        peer="JAX in",
        bar=1,
        ours="hostmesh in",
    ),
    Claim(
        "small_leaf_out",
        "one leaf of 64 int32 back, no slower",
        _RACE,
        peer="JAX back",
        bar=1,
        ours="hostmesh back",
    ),
)
