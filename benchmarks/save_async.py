"""`async_save` in a training loop: a step while it writes takes at most 1.2 times one without."""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile

PROCESSES, DEVICES = 2, 1
STEPS, SECONDS, MIB = 100, 0.02, 90


def loop(rounds: int, folder: str) -> dict[str, list[float]]:
    """Seconds of steps without a save, with one in the background, and of calls that save."""
    import resource
    import time
    from pathlib import Path

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    import hostmesh as hm

    mesh = Mesh(jax.devices(), "x")
    sharding = NamedSharding(mesh, P("x"))
    rows = MIB * 2**20 // 4 // 1024
    value = np.ones((rows, 1024), np.float32)
    weights = jax.make_array_from_callback(value.shape, sharding, value.__getitem__)
    mean = jax.jit(lambda w: jnp.mean(w[:: rows // 2]))

    def step() -> float:
        began = time.perf_counter()
        mean(weights).block_until_ready()
        time.sleep(SECONDS)  # stands for an accelerator that computes
        return time.perf_counter() - began

    def peak() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    found: dict[str, list[float]] = {
        name: [] for name in ("alone", "while it writes", "call", "write", "MiB more")
    }
    for _ in range(10):
        step()
    before = peak()
    for number in range(-1, rounds):
        hm.barrier("alone")
        alone = [step() for _ in range(STEPS)]
        hm.barrier("saving")
        began = time.perf_counter()
        handle = hm.async_save(Path(folder) / "m", {"w": weights})
        call = time.perf_counter() - began
        during: list[float] = []
        while not hm.all_processes(handle.done()):  # one by one they would part
            during.append(step())
        write = time.perf_counter() - began
        handle.wait()
        if number >= 0:
            found["alone"].append(statistics.median(alone))
            found["while it writes"].append(statistics.fmean(during))
            found["call"].append(call)
            found["write"].append(write)
            found["MiB more"].append(peak() - before)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds

    import hostmesh.testing

    with tempfile.TemporaryDirectory(dir=os.environ.get("HOSTMESH_FOLDER")) as folder:
        every = hostmesh.testing.run(loop, PROCESSES, DEVICES, (rounds, folder), timeout=540)
    median = {name: statistics.median(x for own in every for x in own[name]) for name in every[0]}
    ratio = median["while it writes"] / median["alone"]
    print(f"{(__doc__ or '').splitlines()[0]} ({rounds} rounds, medians, {MIB} MiB in all)")
    print(
        f"step alone {1e3 * median['alone']:.1f} ms, while it writes"
        f" {1e3 * median['while it writes']:.1f} ms: {ratio:.2f}x, bound 1.2x,"
        f" {'holds' if ratio <= 1.2 else 'MISSED'}"
    )
    print(
        f"the call takes {1e3 * median['call']:.1f} ms, the save {1e3 * median['write']:.0f} ms;"
        f" own chunks are {MIB / PROCESSES:.0f} MiB, memory grows by {median['MiB more']:.0f} MiB"
    )
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
