"""What to_global's checks cost on 300 leaves of 64x32 and on 64 MiB, replicated; no claim."""

import functools

from _race import Contestants, Row, main, race


def contestants(small: bool) -> Contestants:
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


def measure(rounds: int) -> list[Row]:
    rows: list[Row] = []
    for small in (True, False):
        times = race(functools.partial(contestants, small), rounds)
        work = "300 leaves" if small else "64 MiB"
        rows += [
            Row(f"{work}, check={check}", peer, times[key], times[check])
            for check in ("None", "shapes", "replicas")
            for peer, key in (("JAX, assert_equal", "JAX"), ("check=None", "None"))
        ]
    return rows


if __name__ == "__main__":
    main(measure, __doc__, rounds=5)
