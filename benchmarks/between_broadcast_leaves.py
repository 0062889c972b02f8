"""broadcast of 300 leaves of 64x32: at least 60x as fast as JAX's broadcast_one_to_all.

The second row is the bound: the same bytes by compiled programs and one copy of what comes, with no
agreement or packing.
"""

from _between import in_a_row, main
from _race import Contestants


def contestants() -> Contestants:
    import jax
    import numpy as np
    from jax.experimental import multihost_utils

    import hostmesh
    from hostmesh import _transport

    leaves = [np.random.rand(64, 32).astype(np.float32) for _ in range(300)]
    every, sends = tuple(range(jax.process_count())), jax.process_index() == 0
    nbytes = sum(leaf.nbytes for leaf in leaves)

    results = np.empty((1, nbytes), np.uint8)

    def take(rows: np.ndarray, start: int) -> None:
        results[:, start : start + rows.shape[1]] = rows

    def fill(part: np.ndarray, start: int) -> None:
        part[...] = 1

    def transport() -> None:
        _transport.broadcast(nbytes, every, 0, fill if sends else None, take)

    return {
        "bytes and one copy": in_a_row(3, transport),
        "JAX": in_a_row(3, lambda: multihost_utils.broadcast_one_to_all(leaves)),
        "hostmesh": in_a_row(3, lambda: hostmesh.broadcast(leaves)),
    }


if __name__ == "__main__":
    main(contestants, "broadcast, 300 leaves, three in a row", 60, __doc__, rounds=5)
