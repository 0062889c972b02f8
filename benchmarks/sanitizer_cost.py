"""What the sanitizer costs: nothing for a step that a Feeder feeds, a round trip for each to_global.

Loops with and without it are taken in turns, in one group of 4 processes: batches from a `Feeder`,
batches by `to_global`, and values by `to_global` that every process holds, which are digested, too.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

PROCESSES = 4
WAYS = ("batches of a Feeder", "to_global, cut", "to_global, replicated")


def turns(count: int, steps: int) -> dict[tuple[str, bool], list[float]]:
    """In every process: milliseconds of a step, by the way and whether it is sanitized."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as P

    import hostmesh as hm

    mesh = Mesh(jax.devices(), "x")
    rows = np.random.default_rng(0).normal(size=(256, 256)).astype(np.float32)
    weights = hm.to_global(np.zeros((256, 256), np.float32), mesh, P())

    @jax.jit
    def step(batch: Any, weights: Any) -> Any:
        return weights - 1e-6 * (batch.T @ jnp.tanh(batch @ weights))

    def fed() -> None:
        with hm.Feeder(itertools.repeat(rows, steps), mesh, P("x"), check=None) as feeder:
            for batch in feeder:
                step(batch, weights).block_until_ready()

    def placed(spec: P) -> None:
        for _ in range(steps):
            step(hm.to_global(rows, mesh, spec), weights).block_until_ready()

    works: dict[str, Callable[[], None]] = dict(
        zip(WAYS, (fed, lambda: placed(P("x")), lambda: placed(P())), strict=True)
    )
    cases = list(itertools.product(WAYS, (False, True)))
    found: dict[tuple[str, bool], list[float]] = {case: [] for case in cases}
    order = random.Random(0)
    for turn in range(count + 1):  # the first turn warms up
        for way, on in order.sample(cases, len(cases)):
            with hm.sanitize() if on else contextlib.nullcontext():
                hm.barrier("turn")
                began = time.perf_counter()
                works[way]()
                took = (time.perf_counter() - began) / steps * 1e3
                hm.barrier("end")
            if turn:
                found[way, on].append(took)
    return found


def main() -> None:
    import hostmesh.testing

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=21)
    parser.add_argument("--steps", type=int, default=100, help="of a turn")
    options = parser.parse_args()
    arguments = (options.turns, options.steps)
    found = hostmesh.testing.run(turns, PROCESSES, 1, arguments, timeout=3600)[0]
    for way in WAYS:
        off, on = found[way, False], found[way, True]
        ratios = sorted(a / b for a, b in zip(on, off, strict=True))
        more = statistics.median(a - b for a, b in zip(on, off, strict=True))
        print(
            f"{way}: a step {statistics.median(off):.3f} ms without, {statistics.median(on):.3f} ms"
            f" with the sanitizer; {more:+.3f} ms; ratio of turns: median"
            f" {statistics.median(ratios):.3f}, quarters {ratios[len(ratios) // 4]:.3f} to"
            f" {ratios[3 * len(ratios) // 4]:.3f}"
        )
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")


if __name__ == "__main__":
    main()
