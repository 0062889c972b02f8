"""300 leaves of 64x32 float32 in, each cut over all devices: at least 4x as fast as JAX.

The last row is the bound: JAX's low-level put, leaf by leaf, of parts that are cut already.
"""

from _race import Contestants, Row, main, race


def contestants() -> Contestants:
    import jax
    import numpy as np
    from jax.experimental import multihost_utils
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import hostmesh
    from hostmesh import _jax, _recipes

    mesh = Mesh(np.array(jax.devices()).reshape(jax.process_count(), -1), ("x", "y"))
    leaves = [np.random.rand(64, 32).astype(np.float32) for _ in range(300)]
    specs = [PartitionSpec(("x", "y"))] * len(leaves)
    recipe = _recipes.inward(NamedSharding(mesh, specs[0]), (64, 32), leaves[0].dtype, None, False)
    cut = [recipe.cut(leaf) for leaf in leaves]
    put = _jax.putter(recipe.aval, recipe.sharding, lambda parts: parts, recipe.devices, False)
    return {
        "put alone": lambda: [put(parts) for parts in cut],
        "JAX": lambda: multihost_utils.host_local_array_to_global_array(leaves, mesh, specs),
        "hostmesh": lambda: hostmesh.to_global(leaves, mesh, specs),
    }


def measure(rounds: int) -> list[Row]:
    times = race(contestants, rounds)
    return [
        Row("to_global, 300 leaves", "JAX", times["JAX"], times["hostmesh"], bound=4),
        Row("to_global, 300 leaves", "put alone", times["put alone"], times["hostmesh"]),
    ]


if __name__ == "__main__":
    main(measure, __doc__, rounds=60)
