"""The drop-in module for JAX's: as fast as what it is made of."""

from __future__ import annotations

from pathlib import Path

from .._claim import Claim, Contestants, Race
from . import _given


def contestants(folder: Path) -> Contestants:
    from jax.sharding import PartitionSpec

    import hostmesh
    from hostmesh import multihost_utils

    mesh, leaves = _given.mesh(), _given.leaves()
    specs = [PartitionSpec(("x", "y"))] * len(leaves)
    arrays = hostmesh.to_global(leaves, mesh, specs)
    return {
        "to_global": lambda: hostmesh.to_global(leaves, mesh, specs),
        "in": lambda: multihost_utils.host_local_array_to_global_array(leaves, mesh, specs),
        "to_local": lambda: hostmesh.to_local(arrays, mesh, specs),
        "back": lambda: multihost_utils.global_array_to_host_local_array(arrays, mesh, specs),
    }


CLAIMS = (
    Claim(
        "drop_in_in",
        "the drop-in module, 300 leaves in, against to_global (0.05 for noise: both run the same code)",
        Race(contestants),
        peer="to_global",
        bar=0.95,
        why="both run the same code: this is the noise of the machine",
        ours="in",
    ),
    Claim(
        "drop_in_out",
        "the drop-in module, 300 leaves back, against to_local (0.05 for noise)",
        Race(contestants),
        peer="to_local",
        bar=0.95,
        why="both run the same code: this is the noise of the machine",
        ours="back",
    ),
)
