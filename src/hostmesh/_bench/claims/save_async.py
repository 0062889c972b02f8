"""Steps of a training loop while a save goes on behind them, against steps alone."""

from __future__ import annotations

import time
from pathlib import Path

from .._claim import Claim, Contestants, Race
from . import _given

STEPS, SECONDS = 50, 0.02


def contestants(folder: Path) -> Contestants:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import PartitionSpec

    import hostmesh

    mesh = _given.mesh()
    value = np.ones((16, 2**20 * 90 // 64 // jax.process_count()), np.float32)  # 90 MiB in all
    weights = hostmesh.to_global(value, mesh, PartitionSpec(("x", "y")))
    mean = jax.jit(lambda w: jnp.mean(w[::16, ::1024]))

    def steps() -> None:
        for _ in range(STEPS):
            mean(weights).block_until_ready()
            time.sleep(SECONDS)  # stands for an accelerator that computes

    def saving() -> None:
        handle = hostmesh.async_save(folder / "weights", {"w": weights})
        steps()
        handle.wait()

    return {"steps alone": steps, "hostmesh": saving}


CLAIMS = (
    Claim(
        "save_async",
        f"{STEPS} steps of 20 ms with async_save of 90 MiB, within 1.2 times the steps alone",
        Race(contestants),
        peer="steps alone",
        bar=1 / 1.2,
    ),
)
