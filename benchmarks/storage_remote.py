"""24 MB over HTTP, 20 ms a request, 50 MB/s in all: chunks that four hold, read once: 1.8 times as fast."""

from __future__ import annotations

import os

from _race import Contestants, Row, main, race
from _server import Server

RATE, DELAY = 50e6, 0.02


def contestants() -> Contestants:
    import fsspec
    import jax
    import numpy as np
    import safetensors.numpy
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    import hostmesh as hm

    mesh = Mesh(np.array(jax.devices()).reshape(jax.process_count(), -1), ("data", "model"))
    url = os.environ["HOSTMESH_BENCHMARK"]

    def spec(name: str, shape: tuple[int, ...], dtype: object) -> P:
        return P("data", "model") if name < "t4" else P(None, "model")

    def whole() -> object:
        with fsspec.open(url.format("whole"), "rb") as file:
            tensors = safetensors.numpy.load(file.read())
        return {
            name: jax.make_array_from_callback(
                x.shape, NamedSharding(mesh, spec(name, x.shape, x.dtype)), x.__getitem__
            )
            for name, x in tensors.items()
        }

    return {
        "whole files": whole,
        "read": lambda: hm.load_safetensors(url.format("read"), mesh, spec, replicas="read"),
        "once": lambda: hm.load_safetensors(url.format("once"), mesh, spec, replicas="once"),
    }


def measure(rounds: int) -> list[Row]:
    import numpy as np
    import safetensors.numpy

    data = safetensors.numpy.save(
        {f"t{i}": np.full((1536, 512), i, np.float32) for i in range(8)}  # 3 MB each
    )
    with Server(data, DELAY, RATE).running() as server:
        os.environ["HOSTMESH_BENCHMARK"] = server.url("{}")
        times = race(contestants, rounds)
    for name in times:
        key = name.split()[0]
        calls = rounds + 3  # those that warm up
        nbytes, requests = server.nbytes[key] / calls, server.requests[key] / calls
        print(
            f"{name}: {nbytes / 1e6:.1f} MB of {len(data) / 1e6:.1f}, {requests:.1f} requests a load"
        )
    peers = {"whole files": 2.5, "read": 1.8}
    return [Row("24 MB, 4 x 2", p, times[p], times["once"], bound) for p, bound in peers.items()]


if __name__ == "__main__":
    main(measure, __doc__, rounds=5)
