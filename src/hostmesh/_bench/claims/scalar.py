"""allgather of a scalar.

The bound: two requests of each process at the coordination service, one to send and one to wait for
another's. No other service carries a value without a compiled program.
"""

from __future__ import annotations

from pathlib import Path

from .._claim import Claim, Contestants, Race


def contestants(folder: Path) -> Contestants:
    import itertools
    import uuid

    import jax
    import numpy as np
    from jax.experimental import multihost_utils

    import hostmesh

    from ... import _jax

    value = np.float32(1)
    store, numbers, run = _jax.store(), itertools.count(), hostmesh.same_choice(uuid.uuid4().hex)
    assert store is not None
    me, next_one = jax.process_index(), (jax.process_index() + 1) % jax.process_count()

    def requests() -> None:
        number = next(numbers)
        store.set_once(f"benchmark/{run}/{number}/{me}", b"1")
        store.get(f"benchmark/{run}/{number}/{next_one}", 60)

    return {
        "requests alone": requests,
        "JAX": lambda: multihost_utils.process_allgather(value),
        "hostmesh": lambda: hostmesh.allgather(value),
    }


CLAIMS = (
    Claim(
        "scalar",
        "allgather of a scalar, against process_allgather",
        Race(contestants, calls=10),
        peer="JAX",
        bar=2,
        bounds=("requests alone",),
        why="an agreement is two trips to the coordination service, which shares the cores with all"
        " processes here",
    ),
)
