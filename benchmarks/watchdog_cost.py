"""What the watchdog costs: a step with it takes at most 1.01 times one without it.

The steps with and without one are taken in turns, in one group of 4 processes. Then what process 0
and its coordination service have to do at 4,096 processes: by what each request costs here, with
4,096 real heartbeats in the service.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from typing import Any

PROCESSES = 4
MANY = 4096


def turns(count: int, seconds: float, timeout: float) -> dict[bool, list[float]]:
    """In every process: milliseconds of a step, by whether a watchdog runs: a number for each turn."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as P

    import hostmesh as hm

    mesh = Mesh(jax.devices(), "x")

    @jax.jit
    def step(batch: Any, weights: Any) -> Any:
        return weights - 1e-6 * (batch.T @ jnp.tanh(batch @ weights))

    rows = np.random.default_rng(0).normal(size=(256, 256)).astype(np.float32)
    found: dict[bool, list[float]] = {False: [], True: []}
    order = random.Random(0)
    for turn in range(count + 1):  # the first turn warms up
        for on in order.sample([False, True], 2):
            watchdog = hm.Watchdog(timeout).start() if on else None
            weights = hm.to_global(np.zeros((256, 256), np.float32), mesh, P())
            hm.barrier("turn")
            steps, began = 0, time.perf_counter()
            goes_on = True
            while goes_on:
                for _ in range(20):
                    hm.watchdog.step(steps)
                    weights = step(hm.to_global(rows, mesh, P("x")), weights)
                    weights.block_until_ready()
                    steps += 1
                goes_on = hm.same_choice(time.perf_counter() - began < seconds)
            took = (time.perf_counter() - began) / steps * 1e3
            if watchdog is not None:
                watchdog.stop()
            hm.barrier("stopped")
            if turn:
                found[on].append(took)
    return found


def requests(count: int) -> dict[str, float]:
    """On process 0: seconds of CPU, service included, for each thing that a round takes."""
    import jax

    import hostmesh as hm
    from hostmesh import _jax
    from hostmesh._watch._beat import Beat
    from hostmesh._watch._judge import Limits, judge
    from hostmesh._watch._lead import Beats

    store = _jax.store()
    assert store is not None
    me, found = jax.process_index(), dict[str, float]()
    beat = Beat(
        0, 1, "node-of-a-long-name-1234", 123456, step=1234, marks=99999, place="a/train.py:41"
    )
    for name, request in {
        "set": lambda: store.set(f"cost/{me}", beat.packed()),
        "look": lambda: store.peek("cost/1"),
    }.items():
        hm.barrier("begin")
        cpu = time.process_time()
        if me == 1:
            for _ in range(count):
                request()
        hm.barrier("end")
        found[name] = (time.process_time() - cpu) / count
    if me == 0:
        for process in range(MANY):
            store.set(f"many/{process}", Beat(process, 1, beat.host, 1, marks=9, age=1.0).packed())
        beats = Beats()
        cpu = time.process_time()
        for _ in range(10):
            beats.take(store.list("many/"))
            judge(beats.seen(), Limits(300, 3600, 15, 85))
        found["all"] = (time.process_time() - cpu) / 10
        store.delete("many/")
    found["bytes"] = float(len(beat.packed()))
    return found


def main() -> None:
    import hostmesh.testing

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a turn")
    parser.add_argument("--timeout", type=float, default=300.0, help="of the watchdog")
    options = parser.parse_args()
    arguments = (options.turns, options.seconds, options.timeout)
    limit = options.turns * options.seconds * 3 + 120
    every = hostmesh.testing.run(turns, PROCESSES, 1, arguments, timeout=limit)[0]
    ratios = sorted(on / off for off, on in zip(every[False], every[True], strict=True))
    print(
        f"a step: {statistics.median(every[False]):.3f} ms without, "
        f"{statistics.median(every[True]):.3f} ms with a watchdog (time-out {options.timeout:g} s);"
        f" ratio of turns: median {statistics.median(ratios):.4f},"
        f" quarters {ratios[len(ratios) // 4]:.4f} to {ratios[3 * len(ratios) // 4]:.4f}"
    )
    costs = hostmesh.testing.run(requests, 2, 1, (2000,), timeout=120)[0]
    each = costs["set"] + costs["look"]
    print(
        f"of process 0's CPU: {costs['set'] * 1e6:.0f} us to take a heartbeat of"
        f" {costs['bytes']:.0f} bytes, {costs['look'] * 1e6:.0f} us for a look at the summary,"
        f" {costs['all'] * 1e3:.1f} ms to list and judge {MANY:,} heartbeats"
    )
    for seconds, when in (
        (5.0, "as a rule, at a time-out of 300 s"),
        (1.0, "while all stand still"),
    ):
        busy = (MANY * each + costs["all"]) / seconds
        print(
            f"P = {MANY:,}, a round every {seconds:g} s ({when}): {2 * MANY / seconds:,.0f} requests/s,"
            f" {busy:.0%} of one CPU of process 0's host"
        )
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")


if __name__ == "__main__":
    main()
