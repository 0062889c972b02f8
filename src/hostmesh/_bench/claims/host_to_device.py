"""A large leaf from ordinary memory to accelerators. The bound is the link: a copy of pinned memory."""

from __future__ import annotations

from pathlib import Path

from .._claim import Claim, Contestants, Race
from . import _given

NAME = "host_to_device"
NBYTES = 256 * 2**20


def contestants(folder: Path) -> Contestants:
    import jax
    from jax.experimental import multihost_utils
    from jax.sharding import NamedSharding, PartitionSpec

    import hostmesh

    mesh, leaf, spec = _given.mesh(), _given.large(NBYTES), PartitionSpec(("x", "y"))
    there = NamedSharding(mesh, spec)
    pinned = jax.device_put(leaf, there.with_memory_kind("pinned_host"))
    return {
        "pinned memory": lambda: jax.device_put(pinned, there),
        "JAX": lambda: multihost_utils.host_local_array_to_global_array(leaf, mesh, spec),
        "device_put": lambda: jax.device_put(leaf, there),
        "hostmesh": lambda: hostmesh.to_global(leaf, mesh, spec),
    }


CLAIMS = (
    Claim(
        NAME,
        "256 MiB from ordinary memory to the accelerators of this process",
        Race(contestants),
        peer="device_put",
        bounds=("pinned memory",),
    ),
)
