"""Importing hostmesh: at most 1.2x the time of importing JAX, and no backend initialised."""

from __future__ import annotations

import subprocess
import sys

from _race import Row, main

# The number of CPU devices can be set until a backend is initialised, and no longer.
PROGRAM = """
import time
start = time.perf_counter(), time.process_time()
import {module}
print(time.perf_counter() - start[0], time.process_time() - start[1])
import jax
jax.config.update("jax_num_cpu_devices", 2)
"""


def seconds(module: str) -> list[float]:
    """An import's wall and CPU time in a new interpreter; fails if it initialised a backend."""
    command = [sys.executable, "-c", PROGRAM.format(module=module)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return [float(time) for time in run.stdout.split()]


def measure(rounds: int) -> list[Row]:
    for module in ("jax", "hostmesh"):
        seconds(module)  # the file cache warms up
    times = [(*seconds("jax"), *seconds("hostmesh")) for _ in range(rounds)]
    jax_wall, jax_cpu, wall, cpu = zip(*times, strict=True)
    return [
        Row("import", "JAX", jax_wall, wall, bound=1 / 1.2),
        Row("import, CPU time", "JAX", jax_cpu, cpu),
    ]


if __name__ == "__main__":
    main(measure, __doc__, rounds=15)
