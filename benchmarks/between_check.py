"""What to_global's checks cost on 300 leaves of 64x32 and on 64 MiB, replicated; no claim."""

from __future__ import annotations

import functools
from pathlib import Path

from hostmesh._bench._claim import Claim, Contestants, Race
from hostmesh._bench._script import main


def contestants(folder: Path, small: bool) -> Contestants:
    import jax
    import numpy as np
    from jax.experimental import multihost_utils
    from jax.sharding import Mesh, PartitionSpec

    import hostmesh

    mesh = Mesh(np.array(jax.devices()).reshape(jax.process_count(), -1), ("x", "y"))
    random = np.random.default_rng(0)
    shape = (64, 32) if small else (16 * 2**20,)
    leaves = [random.random(shape, np.float32) for _ in range(300 if small else 1)]

    def by_jax() -> object:
        multihost_utils.assert_equal(leaves)
        return multihost_utils.host_local_array_to_global_array(leaves, mesh, PartitionSpec())

    def ours(check: str | None) -> object:
        return hostmesh.to_global(leaves, mesh, PartitionSpec(), check=check)

    checks = (None, "shapes", "replicas")
    return {"JAX": by_jax} | {str(check): functools.partial(ours, check) for check in checks}


_RACES = {
    work: Race(functools.partial(contestants, small=small))
    for work, small in (("300 leaves", True), ("64 MiB", False))
}
CLAIMS = [
    Claim(f"{work}, {check}", f"check={check}", race, peer="JAX", bounds=("None",), ours=check)
    for work, race in _RACES.items()
    for check in ("None", "shapes", "replicas")
]

if __name__ == "__main__":
    main(CLAIMS, __doc__, rounds=5)
