"""300 leaves of 64x32 float32 back to host-local arrays: at least 5x as fast as JAX."""

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
    arrays = hostmesh.to_global(leaves, mesh, specs)
    return {
        "JAX": lambda: multihost_utils.global_array_to_host_local_array(arrays, mesh, specs),
        "hostmesh": lambda: hostmesh.to_local(arrays, mesh, specs),
        "own layout": lambda: hostmesh.to_local(arrays),
    }


def measure(rounds: int) -> list[Row]:
    times = race(contestants, rounds)
    return [
        Row("to_local(arrays, mesh, specs)", "JAX", times["JAX"], times["hostmesh"], bound=5),
        Row("to_local(arrays)", "JAX", times["JAX"], times["own layout"]),
    ]


if __name__ == "__main__":
    main(measure, __doc__, rounds=60)
