"""assert_equal of 64 MiB that are equal on all processes: at least 100x as fast as JAX."""

from _race import Contestants, Row, main, race


def contestants() -> Contestants:
    import numpy as np
    from jax.experimental import multihost_utils

    import hostmesh

    value = np.random.default_rng(0).random(16 * 2**20, np.float32)
    return {
        "JAX": lambda: multihost_utils.assert_equal(value),
        "hostmesh": lambda: hostmesh.assert_equal(value),
    }


def measure(rounds: int) -> list[Row]:
    times = race(contestants, rounds)
    return [Row("assert_equal, 64 MiB", "JAX", times["JAX"], times["hostmesh"], 100)]


if __name__ == "__main__":
    main(measure, __doc__, rounds=10)
