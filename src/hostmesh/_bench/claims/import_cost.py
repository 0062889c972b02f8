"""Importing hostmesh: little more than importing JAX, and no backend initialised."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .._claim import Claim, Contestants, Race

# The number of CPU devices can be set until a backend is initialised, and no longer.
_PROGRAM = """
import {module}
import jax
jax.config.update("jax_num_cpu_devices", 2)
"""


def contestants(folder: Path) -> Contestants:
    def run(program: str) -> None:
        subprocess.run([sys.executable, "-c", program], check=True, timeout=120)

    return {
        "JAX": lambda: run(_PROGRAM.format(module="jax")),
        "hostmesh": lambda: run(_PROGRAM.format(module="hostmesh")),
        "Python alone": lambda: run("pass"),
    }


CLAIMS = (
    Claim(
        "import_cost",
        "a Python that imports hostmesh, at most 1.2 times one that imports JAX",
        Race(contestants, layout=(1, 1)),
        peer="JAX",
        bar=1 / 1.2,
        bounds=("Python alone",),
    ),
)
