"""Many small leaves in. The bound is JAX's low-level put, leaf by leaf, of parts that are cut already."""

from __future__ import annotations

from pathlib import Path

from .._claim import Claim, Contestants, Race
from . import _given


def contestants(folder: Path, count: int = _given.LEAVES) -> Contestants:
    from jax.experimental import multihost_utils
    from jax.sharding import NamedSharding, PartitionSpec

    import hostmesh

    from ... import _jax, _recipes

    mesh, leaves = _given.mesh(), _given.leaves(count)
    specs = [PartitionSpec(("x", "y"))] * len(leaves)
    recipe = _recipes.inward(NamedSharding(mesh, specs[0]), (64, 32), leaves[0].dtype, None, False)
    cut = [recipe.cut(leaf) for leaf in leaves]
    put = _jax.putter(recipe.aval, recipe.sharding, lambda parts: parts, recipe.devices, False)
    return {
        "put alone": lambda: [put(parts) for parts in cut],
        "JAX": lambda: multihost_utils.host_local_array_to_global_array(leaves, mesh, specs),
        "hostmesh": lambda: hostmesh.to_global(leaves, mesh, specs),
    }


CLAIMS = (
    Claim(
        "leaves_in",
        "300 leaves of 64x32 float32 in, each cut over all devices",
        Race(contestants),
        peer="JAX",
        bar=4,
        bounds=("put alone",),
        why="JAX's own put of each leaf, the bound, takes most of the time",
    ),
)
