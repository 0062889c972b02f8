"""A large value onto all devices, checked to be equal everywhere."""

from __future__ import annotations

from pathlib import Path

from .._claim import Claim, Contestants, Race
from . import _given


def contestants(folder: Path) -> Contestants:
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    import hostmesh

    mesh, value = _given.mesh(), _given.large()
    everywhere = NamedSharding(mesh, PartitionSpec())
    mine = value if jax.process_index() == 0 else None
    return {
        "copy per device": lambda: [np.copy(value) for _ in jax.local_devices()],
        "device_put": lambda: jax.device_put(value, everywhere),
        "hostmesh": lambda: hostmesh.replicate(value, mesh),
        "hostmesh, source=0": lambda: hostmesh.replicate(mine, mesh, source=0),
    }


CLAIMS = (
    Claim(
        "replicate",
        "replicate of 64 MiB, checked to be equal everywhere, against jax.device_put",
        Race(contestants),
        peer="device_put",
        bar=12,
        bounds=("copy per device",),
    ),
    Claim(
        "replicate_source",
        "replicate of 64 MiB that one process has, against jax.device_put of what all have",
        Race(contestants),
        peer="device_put",
        ours="hostmesh, source=0",
    ),
)
