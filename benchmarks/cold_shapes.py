"""The first conversion of 50 shapes in 8 processes x 32 devices: not slower than JAX's two ways."""

from __future__ import annotations

import itertools

from _race import Contestants, Row, main, race

PROCESSES, DEVICES, SHAPES = 8, 32, 50


def contestants() -> Contestants:
    import jax
    import numpy as np
    from jax.experimental import multihost_utils
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import hostmesh

    mesh = Mesh(np.array(jax.devices()).reshape(jax.process_count(), -1), ("x", "y"))
    spec = PartitionSpec(("x", "y"))
    sharding = NamedSharding(mesh, spec)
    columns = itertools.count(1)  # no shape comes twice, so that every conversion is a first one

    def leaves() -> list[np.ndarray]:
        return [np.zeros((32, next(columns)), np.float32) for _ in range(SHAPES)]

    def from_process_local_data() -> list[jax.Array]:
        return [jax.make_array_from_process_local_data(sharding, leaf) for leaf in leaves()]

    return {
        "JAX": lambda: multihost_utils.host_local_array_to_global_array(leaves(), mesh, spec),
        "JAX, process_local_data": from_process_local_data,
        "hostmesh": lambda: hostmesh.to_global(leaves(), mesh, spec),
    }


def measure(rounds: int) -> list[Row]:
    times = race(contestants, rounds, processes=PROCESSES, devices=DEVICES)
    return [
        Row(f"to_global, {SHAPES} new shapes", peer, times[peer], times["hostmesh"], bound)
        for peer, bound in {"JAX": 1, "JAX, process_local_data": 1}.items()
    ]


if __name__ == "__main__":
    main(measure, __doc__, rounds=10)
