"""A barrier with its name agreed, against JAX's."""

from __future__ import annotations

from pathlib import Path

from .._claim import Claim, Contestants, Race


def contestants(folder: Path) -> Contestants:
    from jax.experimental import multihost_utils

    import hostmesh

    return {
        "JAX": lambda: multihost_utils.sync_global_devices("benchmark"),
        "hostmesh": lambda: hostmesh.barrier("benchmark"),
    }


CLAIMS = (
    Claim(
        "barrier",
        "a barrier with its name agreed, against sync_global_devices",
        Race(contestants, calls=10),
        peer="JAX",
        bar=4,
        why="an agreement is two trips to the coordination service, which shares the cores with all"
        " processes here",
    ),
)
