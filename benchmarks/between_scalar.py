"""allgather of a scalar: at least 2x as fast as JAX's process_allgather.

The second row is the bound: two requests of each process at the coordination service, one to send
and one to wait for another's. No other service carries a value without a compiled program.
"""

from _between import in_a_row, main
from _race import Contestants


def contestants() -> Contestants:
    import itertools

    import jax
    import numpy as np
    from jax.experimental import multihost_utils

    import hostmesh
    from hostmesh import _jax

    value = np.float32(1)
    store, numbers = _jax.store(), itertools.count()
    me, next_one = jax.process_index(), (jax.process_index() + 1) % jax.process_count()

    def requests() -> None:
        number = next(numbers)
        store.set_once(f"benchmark/{number}/{me}", b"1")
        store.get(f"benchmark/{number}/{next_one}", 60)

    return {
        "requests alone": in_a_row(10, requests),
        "JAX": in_a_row(10, lambda: multihost_utils.process_allgather(value)),
        "hostmesh": in_a_row(10, lambda: hostmesh.allgather(value)),
    }


if __name__ == "__main__":
    main(contestants, "allgather of a scalar, ten in a row", 2, __doc__, rounds=20)
