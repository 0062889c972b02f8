"""A source and a step of equal time, which `Feeder` overlaps. The bound is the steps alone."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .._claim import Claim, Contestants, Race

STEPS, SECONDS = 40, 0.02


def contestants(folder: Path) -> Contestants:
    import collections
    import time

    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    import hostmesh as hm

    mesh = Mesh(jax.devices(), "x")
    sharding = NamedSharding(mesh, P("x"))
    rows = 16 * jax.local_device_count()
    loss = jax.jit(lambda batch: (batch["x"] ** 2).mean())

    def read(number: int) -> dict[str, Any]:
        time.sleep(SECONDS)  # a source that waits for its storage
        return {"x": np.full((rows, 64), number + jax.process_index(), np.float32)}

    def source() -> Iterator[Any]:
        return (read(number) for number in range(STEPS))

    def step(batch: Any) -> None:
        jax.block_until_ready(loss(batch))
        time.sleep(SECONDS)  # stands for an accelerator that computes

    def to_global(batch: Any) -> Any:
        return jax.tree.map(lambda x: jax.make_array_from_process_local_data(sharding, x), batch)

    def alone() -> None:
        batch = to_global({"x": np.zeros((rows, 64), np.float32)})
        for _ in range(STEPS):
            step(batch)

    def as_in_flax() -> None:
        """`flax.jax_utils.prefetch_to_device`: transfers are started ahead, the source is in line."""
        queue: collections.deque[Any] = collections.deque()
        iterator = source()

        def fill(n: int) -> None:
            for batch in (next(iterator, None) for _ in range(n)):
                if batch is not None:
                    queue.append(to_global(batch))

        fill(2)
        while queue:
            step(queue.popleft())
            fill(1)

    def grain_and_jax() -> None:
        import grain

        dataset = grain.MapDataset.range(STEPS).map(read)
        options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
        for batch in dataset.to_iter_dataset(options):
            step(to_global(batch))

    def feeder() -> None:
        for batch in hm.Feeder(source(), mesh, P("x"), prefetch=2):
            step(batch)

    others = {"Grain + JAX": grain_and_jax} if importlib.util.find_spec("grain") else {}
    return {"steps alone": alone, "as in flax": as_in_flax, "hostmesh": feeder, **others}


_RACE = Race(contestants)
CLAIMS = (
    Claim(
        "feeder",
        f"a Feeder of {STEPS} steps of 20 ms and a source of 20 ms, within 1.15 times the steps alone",
        _RACE,
        peer="steps alone",
        bar=1 / 1.15,
    ),
    Claim(
        "feeder_flax",
        "the same against flax's prefetch_to_device, which reads between the steps",
        _RACE,
        peer="as in flax",
        bar=1,
        bounds=("steps alone",),
    ),
    Claim(
        "feeder_grain",
        "the same against a Grain loader that reads ahead, as fast (0.03 for noise)",
        _RACE,
        peer="Grain + JAX",
        bar=0.97,
        bounds=("steps alone",),
        needs="grain",
    ),
)
