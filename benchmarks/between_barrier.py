"""barrier with its name agreed: at least 4x as fast as JAX's sync_global_devices."""

from _between import in_a_row, main
from _race import Contestants


def contestants() -> Contestants:
    from jax.experimental import multihost_utils

    import hostmesh

    return {
        "JAX": in_a_row(lambda: multihost_utils.sync_global_devices("benchmark")),
        "hostmesh": in_a_row(lambda: hostmesh.barrier("benchmark")),
    }


if __name__ == "__main__":
    main(contestants, "barrier, ten in a row", 4, __doc__, rounds=20)
