"""A source and a step of equal time: `Feeder` overlaps them, in at most 1.15 times the steps alone."""

from __future__ import annotations

from _race import Contestants, Row, main, race

STEPS, SECONDS = 200, 0.02


def contestants() -> Contestants:
    import collections
    import time

    import grain
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    import hostmesh as hm

    mesh = Mesh(jax.devices(), "x")
    sharding = NamedSharding(mesh, P("x"))
    rows = 16 * jax.local_device_count()
    loss = jax.jit(lambda batch: (batch["x"] ** 2).mean())

    def read(number: int) -> dict[str, np.ndarray]:
        time.sleep(SECONDS)  # a source that waits for its storage
        return {"x": np.full((rows, 64), number + jax.process_index(), np.float32)}

    def source():
        return (read(number) for number in range(STEPS))

    def step(batch) -> None:
        jax.block_until_ready(loss(batch))
        time.sleep(SECONDS)  # stands for an accelerator that computes

    def to_global(batch):
        return jax.tree.map(lambda x: jax.make_array_from_process_local_data(sharding, x), batch)

    def alone() -> None:
        batch = to_global({"x": np.zeros((rows, 64), np.float32)})
        for _ in range(STEPS):
            step(batch)

    def in_line() -> None:
        for batch in source():
            step(to_global(batch))

    def as_in_flax() -> None:
        """`flax.jax_utils.prefetch_to_device`: transfers are started ahead, the source is in line."""
        queue = collections.deque()
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
        dataset = grain.MapDataset.range(STEPS).map(read)
        options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
        for batch in dataset.to_iter_dataset(options):
            step(to_global(batch))

    def feeder() -> None:
        for batch in hm.Feeder(source(), mesh, P("x"), prefetch=2):
            step(batch)

    return {
        "step alone": alone,
        "in line": in_line,
        "as in flax": as_in_flax,
        "Grain + JAX": grain_and_jax,
        "hostmesh": feeder,
    }


def measure(rounds: int) -> list[Row]:
    times = race(contestants, rounds)
    ours = times["hostmesh"]
    bounds = {"step alone": 1 / 1.15, "as in flax": 1.0, "Grain + JAX": 0.97}
    return [
        Row(f"{STEPS} steps of {1000 * SECONDS:g} ms", peer, theirs, ours, bounds.get(peer))
        for peer, theirs in times.items()
        if peer != "hostmesh"
    ]


if __name__ == "__main__":
    main(measure, __doc__, rounds=3)
