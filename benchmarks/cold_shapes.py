"""The first conversion of 50 shapes in 8 processes x 32 devices: not slower than JAX's two ways."""

from __future__ import annotations

import itertools
from pathlib import Path

from hostmesh._bench._claim import Claim, Contestants, Race
from hostmesh._bench._script import main

PROCESSES, DEVICES, SHAPES = 8, 32, 50


def contestants(folder: Path) -> Contestants:
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
        "process_local": from_process_local_data,
        "hostmesh": lambda: hostmesh.to_global(leaves(), mesh, spec),
    }


_RACE = Race(contestants, layout=(PROCESSES, DEVICES))
CLAIMS = [
    Claim("cold_shapes", f"to_global, {SHAPES} new shapes", _RACE, peer="JAX", bar=1),
    Claim("cold_shapes_local", "the same", _RACE, peer="process_local", bar=1),
]

if __name__ == "__main__":
    main(CLAIMS, __doc__, rounds=10)
