"""300 leaves of 64x32 float32 in, each cut over all devices: at least 4x as fast as JAX."""

from _race import Contestants, Row, main, race


def contestants() -> Contestants:
    import jax
    import numpy as np
    from jax.experimental import multihost_utils
    from jax.sharding import Mesh, PartitionSpec

    import hostmesh

    mesh = Mesh(np.array(jax.devices()).reshape(jax.process_count(), -1), ("x", "y"))
    leaves = [np.random.rand(64, 32).astype(np.float32) for _ in range(300)]
    specs = [PartitionSpec(("x", "y"))] * len(leaves)
    return {
        "JAX": lambda: multihost_utils.host_local_array_to_global_array(leaves, mesh, specs),
        "hostmesh": lambda: hostmesh.to_global(leaves, mesh, specs),
    }


def measure(rounds: int) -> list[Row]:
    times = race(contestants, rounds)
    return [Row("to_global, 300 leaves", "JAX", times["JAX"], times["hostmesh"], bound=4)]


if __name__ == "__main__":
    main(measure, __doc__, rounds=60)
