"""What collectives hold beside their result: at most 64 MiB (assert_equal 16), whatever the processes."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from _memory import MIB, resident

SIZE = 256 * MIB
# MiB beside the result that the claims allow; reduce, gather and allgather show theirs.
BOUNDS = {"broadcast": 64, "replicate": 64, "assert_equal": 16}
CALLS = (*BOUNDS, "allgather", "gather", "reduce")


def growth(name: str) -> float:
    """In every process: MiB by which the peak grows in a call, beside its result of `SIZE`."""
    import gc

    import jax
    import numpy as np
    from jax.sharding import Mesh

    import hostmesh as hm

    me, count = jax.process_index(), jax.process_count()
    mesh = Mesh(np.array(jax.devices()), "x")
    each = SIZE // count if name in ("allgather", "gather") else SIZE
    value = np.ones(each // 4, np.float32)
    calls: dict[str, Any] = {
        "broadcast": lambda x: hm.broadcast(x if me == 0 else None),
        "replicate": lambda x: hm.replicate(x, mesh),
        "assert_equal": lambda x: hm.assert_equal(x),
        "allgather": lambda x: hm.allgather(x),
        "gather": lambda x: hm.gather(x),
        "reduce": lambda x: hm.reduce(x),
    }
    call = calls[name]
    jax.block_until_ready(call(value[: 4 * MIB]))  # compiles, and begins its threads
    hm.config.pool_bytes = 0  # nothing is kept of that
    hm.barrier("warm")
    gc.collect()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    result = jax.block_until_ready(call(value))
    kept = 0 if result is None else SIZE
    return (resident("VmHWM") - before - kept) / MIB


def main() -> None:
    import hostmesh.testing

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4, 8])
    counts = parser.parse_args().processes
    print((__doc__ or "").splitlines()[0])
    for name in CALLS:
        most = [max(hostmesh.testing.run(growth, p, 1, (name,), timeout=300)) for p in counts]
        shown = ", ".join(f"{m:.0f} MiB on {p}" for m, p in zip(most, counts, strict=True))
        bound = BOUNDS.get(name)
        verdict = "" if bound is None else f" (<= {bound}: {_held(max(most), bound)})"
        print(f"{name:13s} {shown} processes{verdict}", flush=True)
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def _held(most: float, bound: float) -> str:
    return "holds" if most <= bound else "MISSED"


if __name__ == "__main__":
    main()
