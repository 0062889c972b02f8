"""One small leaf in and back: not slower than JAX."""

from _race import Contestants, Row, main, race


def contestants() -> Contestants:
    import jax
    import numpy as np
    from jax.experimental import multihost_utils
    from jax.sharding import Mesh, PartitionSpec

    import hostmesh

    mesh = Mesh(np.array(jax.devices()).reshape(jax.process_count(), -1), ("x", "y"))
    spec = PartitionSpec(("x", "y"))
    leaf = np.arange(32, dtype=np.int32)
    array = hostmesh.to_global(leaf, mesh, spec)
    return {
        "JAX in": lambda: multihost_utils.host_local_array_to_global_array(leaf, mesh, spec),
        "hostmesh in": lambda: hostmesh.to_global(leaf, mesh, spec),
        "JAX back": lambda: multihost_utils.global_array_to_host_local_array(array, mesh, spec),
        "hostmesh back": lambda: hostmesh.to_local(array, mesh, spec),
    }


def measure(rounds: int) -> list[Row]:
    times = race(contestants, rounds)
    return [
        Row(f"32 int32 {way}", "JAX", times[f"JAX {way}"], times[f"hostmesh {way}"], 1, "us")
        for way in ("in", "back")
    ]


if __name__ == "__main__":
    main(measure, __doc__, rounds=200)
