"""50,000 steps with small batches: memory, threads and key-value store stay as they were."""

from __future__ import annotations

import argparse

from _memory import resident

PROCESSES, DEVICES = 4, 1


def soak(steps: int) -> list[tuple[int, float, int, int, float]]:
    """In every process, at some steps: step, MiB resident, threads, keys, seconds.

    Keys are the most that the store held at any look since the step before: blocks of rounds are
    deleted at once.
    """
    import threading
    import time

    import jax
    import numpy as np
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as P

    import hostmesh as hm
    from hostmesh import _jax

    me = jax.process_index()
    mesh = Mesh(jax.devices(), "x")
    step = jax.jit(lambda batch, mask: (batch["x"].sum(-1) * mask).sum())

    def source():
        for number in range(steps):
            yield {"x": np.full((2, 8), number + me, np.float32)}

    store = _jax.store()
    assert store is not None
    notes: list[tuple[int, float, int, int, float]] = []
    began = time.monotonic()
    looks = {1000, *(range(0, steps, max(1, steps // 10))), steps - 1}
    most = 0
    for number, (batch, mask) in enumerate(hm.Feeder(source(), mesh, P("x"), ends="pad")):
        step(batch, mask).block_until_ready()
        if number in looks or number % 97 == 0:
            most = max(most, len(store.list("hostmesh/")))
        if number in looks:
            spent = time.monotonic() - began
            notes.append((number, resident() / 2**20, threading.active_count(), most, spent))
            most = 0
    return notes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, help="as --steps, for the test of benchmarks")
    options = parser.parse_args()
    steps = options.rounds or options.steps

    import hostmesh.testing

    every = hostmesh.testing.run(soak, PROCESSES, DEVICES, (steps,), timeout=3600)
    print(f"{steps} steps in {PROCESSES} processes; process 0 and the largest growth of all")
    for notes in every[0]:
        step, memory, threads, keys, spent = notes
        print(
            f"step {step:6d}: {memory:7.1f} MiB, {threads} threads, {keys} keys, {spent:6.1f} s"
            f" ({step / spent if spent else 0:.0f} steps/s)",
            flush=True,
        )
    early = [next((n for n in own if n[0] >= 1000), own[0]) for own in every]
    growth = max(own[-1][1] / first[1] for own, first in zip(every, early, strict=True))
    constant = all(len({n[2] for n in own[1:-1]}) <= 1 for own in every)
    print(f"memory at the end to that of step 1000: {growth:.4f}; threads constant: {constant}")


if __name__ == "__main__":
    main()
