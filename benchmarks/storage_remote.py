"""24 MB over HTTP, 20 ms a request, 50 MB/s in all: chunks that four hold, read once: 1.8 times as fast."""

from __future__ import annotations

import functools
from pathlib import Path

from _server import Server

from hostmesh._bench._claim import Claim, Contestants, Race
from hostmesh._bench._script import main

RATE, DELAY = 50e6, 0.02


def contestants(folder: Path, url: str) -> Contestants:
    import fsspec
    import jax
    import numpy as np
    import safetensors.numpy
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    import hostmesh as hm

    mesh = Mesh(np.array(jax.devices()).reshape(jax.process_count(), -1), ("data", "model"))

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


def run() -> None:
    import numpy as np
    import safetensors.numpy

    data = safetensors.numpy.save(
        {f"t{i}": np.full((1536, 512), i, np.float32) for i in range(8)}  # 3 MB each
    )
    with Server(data, DELAY, RATE).running() as server:
        race = Race(functools.partial(contestants, url=server.url("{}")))
        claims = [
            Claim("remote", "24 MB, 4 x 2", race, "whole files", 2.5, ours="once"),
            Claim("remote_once", "24 MB, 4 x 2", race, "read", 1.8, ours="once"),
        ]
        main(claims, __doc__, rounds=5)
    for name, requests in server.requests.items():
        print(f"{name}: {server.nbytes[name] / 1e6:.0f} MB and {requests} requests in all")


if __name__ == "__main__":
    run()
