"""Many small leaves back to host-local arrays."""

from __future__ import annotations

from pathlib import Path

from .._claim import Claim, Contestants, Race
from . import _given


def contestants(folder: Path, count: int = _given.LEAVES) -> Contestants:
    from jax.experimental import multihost_utils
    from jax.sharding import PartitionSpec

    import hostmesh

    mesh, leaves = _given.mesh(), _given.leaves(count)
    specs = [PartitionSpec(("x", "y"))] * len(leaves)
    arrays = hostmesh.to_global(leaves, mesh, specs)
    return {
        "JAX": lambda: multihost_utils.global_array_to_host_local_array(arrays, mesh, specs),
        "hostmesh": lambda: hostmesh.to_local(arrays, mesh, specs),
        "own layout": lambda: hostmesh.to_local(arrays),
    }


CLAIMS = (
    Claim(
        "leaves_out",
        "300 leaves of 64x32 float32 back to host-local arrays",
        Race(contestants),
        peer="JAX",
        bar=5,
        why="JAX's making of one array for each leaf takes most of the time",
    ),
    Claim(
        "leaves_out_own",
        "the same without mesh and specs, by the arrays' own layout",
        Race(contestants),
        peer="JAX",
        ours="own layout",
    ),
)
