"""A batch of small leaves in, against what is written by hand."""

from __future__ import annotations

from pathlib import Path

from .._claim import Claim, Contestants, Race
from . import _given


def contestants(folder: Path) -> Contestants:
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    import hostmesh

    mesh = _given.mesh()
    spec = PartitionSpec(("x", "y"))
    sharding = NamedSharding(mesh, spec)
    devices = jax.local_devices()
    # What an inference step takes: tokens, positions, slots and lengths.
    names = ("tokens", "positions", "slots", "starts", "lengths")
    batch = {name: np.arange(64, dtype=np.int32) for name in names}

    def by_hand() -> dict[str, jax.Array]:
        out: dict[str, jax.Array] = {}
        for name, leaf in batch.items():
            rows = len(leaf) // len(devices)
            parts = [
                jax.device_put(leaf[i * rows : (i + 1) * rows], device)
                for i, device in enumerate(devices)
            ]
            shape = (len(leaf) * jax.process_count(), *leaf.shape[1:])
            out[name] = jax.make_array_from_single_device_arrays(shape, sharding, parts)
        return out

    return {
        "slice and put": by_hand,
        "hostmesh": lambda: hostmesh.to_global(batch, mesh, spec),
    }


CLAIMS = (
    Claim(
        "inference_batch",
        "a batch of 5 small int32 leaves in, against a loop of device_put written by hand",
        Race(contestants, calls=10),
        peer="slice and put",
        bar=2,
    ),
)
