"""The drop-in module, 300 leaves in and back: as fast as to_global and to_local."""

from _race import Contestants, Row, main, race


def contestants() -> Contestants:
    import jax
    import numpy as np
    from jax.sharding import Mesh, PartitionSpec

    import hostmesh
    from hostmesh import multihost_utils

    mesh = Mesh(np.array(jax.devices()).reshape(jax.process_count(), -1), ("x", "y"))
    leaves = [np.random.rand(64, 32).astype(np.float32) for _ in range(300)]
    specs = [PartitionSpec(("x", "y"))] * len(leaves)
    arrays = hostmesh.to_global(leaves, mesh, specs)
    return {
        "to_global": lambda: hostmesh.to_global(leaves, mesh, specs),
        "in": lambda: multihost_utils.host_local_array_to_global_array(leaves, mesh, specs),
        "to_local": lambda: hostmesh.to_local(arrays, mesh, specs),
        "back": lambda: multihost_utils.global_array_to_host_local_array(arrays, mesh, specs),
    }


def measure(rounds: int) -> list[Row]:
    times = race(contestants, rounds)
    # One in twenty for noise: both run the same code.
    return [
        Row("drop-in, in", "to_global", times["to_global"], times["in"], bound=0.95),
        Row("drop-in, back", "to_local", times["to_local"], times["back"], bound=0.95),
    ]


if __name__ == "__main__":
    main(measure, __doc__, rounds=60)
