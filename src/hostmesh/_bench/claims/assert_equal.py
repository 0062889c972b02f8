"""Comparing a large value between processes, which hashes it."""

from __future__ import annotations

from pathlib import Path

from .._claim import Claim, Contestants, Race
from . import _given


def contestants(folder: Path) -> Contestants:
    import xxhash
    from jax.experimental import multihost_utils

    import hostmesh

    value = _given.large()
    return {
        "one read": lambda: xxhash.xxh3_128(value.data).digest(),
        "JAX": lambda: multihost_utils.assert_equal(value),
        "hostmesh": lambda: hostmesh.assert_equal(value),
    }


CLAIMS = (
    Claim(
        "assert_equal",
        "assert_equal of 64 MiB that are equal on all processes, against JAX's",
        Race(contestants),
        peer="JAX",
        bar=100,
        bounds=("one read",),
    ),
)
