"""One leaf of 64 MiB in: how much the process's peak memory grows, against JAX."""

from __future__ import annotations

import argparse

from _memory import MIB

PROCESSES, DEVICES = 4, 2
WAYS = ("JAX", "hostmesh", "hostmesh, may_alias=True")


def growth(way: str) -> int:
    """Bytes by which this process's peak memory grows in its first conversion of a large leaf."""
    import resource

    import jax
    import numpy as np
    from jax.experimental import multihost_utils
    from jax.sharding import Mesh, PartitionSpec

    import hostmesh

    mesh = Mesh(np.array(jax.devices()).reshape(jax.process_count(), -1), ("x", "y"))
    spec = PartitionSpec(("x", "y"))
    convert = {
        "JAX": lambda x: multihost_utils.host_local_array_to_global_array(x, mesh, spec),
        "hostmesh": lambda x: hostmesh.to_global(x, mesh, spec),
        "hostmesh, may_alias=True": lambda x: hostmesh.to_global(x, mesh, spec, may_alias=True),
    }[way]
    jax.block_until_ready(convert(np.ones(1024, np.float32)))
    # Aligned for the one that may alias, and not for the others: JAX would alias by chance.
    memory = np.ones(64 * 2**20 + 128, np.uint8)
    start = -memory.ctypes.data % 64 + (0 if "may_alias" in way else 16)
    leaf = memory[start : start + 64 * 2**20].view(np.float32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    jax.block_until_ready(convert(leaf))
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


def main() -> None:
    import statistics

    import hostmesh.testing

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    # A peak does not fall again: each measurement has processes of its own.
    grown: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for way in WAYS:
            env = {"HOSTMESH_BENCHMARK": f"{way} {number}"}
            found = hostmesh.testing.run(growth, PROCESSES, DEVICES, (way,), env=env)
            grown[way].append(sum(found) / len(found) / MIB)
    print(f"{(__doc__ or '').splitlines()[0]} ({rounds} rounds, medians)")
    theirs = statistics.median(grown["JAX"])
    for way, least in {"hostmesh": 0.95, "hostmesh, may_alias=True": 16}.items():
        ours = statistics.median(grown[way])
        word = "holds" if theirs >= least * ours else "MISSED"
        print(f"{way}: {ours:.1f} MiB, JAX {theirs:.1f} MiB; at least {least:g}x: {word}")


if __name__ == "__main__":
    main()
