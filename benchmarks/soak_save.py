"""100 saves and 100 loads of 90 MB: memory, threads, open files and keys in the store stay as they were."""

from __future__ import annotations

import argparse
import os
import tempfile

from _memory import resident

PROCESSES, DEVICES, MIB = 4, 2, 90


def soak(saves: int, folder: str) -> list[tuple[int, float, int, int, int, float]]:
    """Number, MiB resident, threads, open files, keys in the store, seconds, at some of them."""
    import threading
    import time
    from pathlib import Path

    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    import hostmesh as hm
    from hostmesh import _jax

    mesh = Mesh(np.array(jax.devices()).reshape(jax.process_count(), -1), ("x", "y"))
    tree, specs = {}, {}
    dtypes = [None, None, None, None, np.float16]
    for number, spec in enumerate([P("x", "y"), P(None, "y"), P(), P(("x", "y"))]):
        value = np.full((MIB * 2**20 // 4 // 4 // 1024, 1024), number, np.float32)
        sharding = NamedSharding(mesh, spec)
        specs[f"w{number}"] = spec
        tree[f"w{number}"] = jax.make_array_from_callback(value.shape, sharding, value.__getitem__)
    store = _jax.store()
    assert store is not None
    path = Path(folder) / "m.safetensors"
    notes: list[tuple[int, float, int, int, int, float]] = []
    began = time.monotonic()
    for number in range(saves):
        if number % 2:
            hm.async_save(path, tree).wait()
        else:
            hm.save_safetensors(path, tree)
        # Of equal parts of the file, each of its own number, all are what they were.
        found = hm.load_safetensors(
            path,
            mesh,
            specs,
            replicas="once" if number % 3 == 2 else "read",
            dtype=dtypes[number % 5],
        )
        for name, array in found.items():
            shard = np.asarray(array.addressable_data(0))
            assert (shard == int(name[1:])).all(), (number, name)
        del found, array, shard
        if number % max(1, saves // 10) == 0 or number == saves - 1:
            files = len(os.listdir("/proc/self/fd"))
            keys = len(store.list("hostmesh/"))
            spent = time.monotonic() - began
            notes.append((number, resident() / 2**20, threading.active_count(), files, keys, spent))
    return notes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--saves", type=int, default=100)
    parser.add_argument("--rounds", type=int, help="as --saves, for the test of benchmarks")
    options = parser.parse_args()
    saves = options.rounds or options.saves

    import hostmesh.testing

    with tempfile.TemporaryDirectory(dir=os.environ.get("HOSTMESH_FOLDER")) as folder:
        every = hostmesh.testing.run(soak, PROCESSES, DEVICES, (saves, folder), timeout=3600)
    print(
        f"{saves} saves of {MIB} MiB, half in the background, each loaded; process 0 and the largest growth"
    )
    for number, memory, threads, files, keys, spent in every[0]:
        print(
            f"number {number:4d}: {memory:7.1f} MiB, {threads} threads, {files} files, {keys} keys,"
            f" {spent:6.1f} s"
        )
    early = [own[1 if len(own) > 2 else 0] for own in every]
    growth = max(own[-1][1] / first[1] for own, first in zip(every, early, strict=True))
    print(f"memory at the end to that after a tenth: {growth:.4f}")


if __name__ == "__main__":
    main()
