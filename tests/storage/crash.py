"""A process of a small cluster that saves over a file, and is killed at one of its system calls.

Run by test_crashes: `crash.py port process processes path last several`. What is saved is a zarr
store where the path is called so, and else one safetensors file or several. `last` is the number of the call
at which this process kills itself; 0 for one that lives. What came of the save is printed.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import jax
import numpy as np

import hostmesh as hm

CALLS = ("open", "pwrite", "pwritev", "truncate", "fsync", "replace", "close", "mkdir")


def value(seed: int) -> dict[str, np.ndarray]:
    """Host values: all hold them, and each writes a part."""
    random = np.random.default_rng(seed)
    return {f"w{i}": random.random((20_000 + i, 3)) for i in range(4)}


def count_down(last: int) -> None:
    left = last

    def counted(call: Any) -> Any:
        def counting(*args: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **options)

        return counting

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))


def main() -> None:
    port, process, processes, path, last, several = sys.argv[1:]
    hm.initialize(
        coordinator_address=f"localhost:{port}",
        num_processes=int(processes),
        process_id=int(process),
    )
    most = 10**6 if int(several) else None
    hm.barrier("ready")
    if int(last):
        count_down(int(last))
    with hm.config.set(timeout=3.0):
        try:
            if path.endswith(".zarr"):
                hm.save_zarr(path, value(2), chunks=(5_000, 3))
            else:
                hm.save_safetensors(path, value(2), max_file_bytes=most)
            print("saved", flush=True)
        except hm.HostmeshError as error:
            print(type(error).__name__, flush=True)
        except jax.errors.JaxRuntimeError:
            print("JaxRuntimeError", flush=True)  # the coordination service died with process 0
    os._exit(0)


if __name__ == "__main__":
    main()
