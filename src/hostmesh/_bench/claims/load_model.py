"""A model's file onto the mesh, from the page cache.

Two bounds: as many bytes read in one piece and put; and this process's own chunks, whose rows are
short runs of bytes in the file, copied out of the mapped file one by one, and put in one call.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._claim import Claim, Contestants, Race
from . import _given, _model


def contestants(folder: Path, tensors: Mapping[str, tuple[int, ...]] | None = None) -> Contestants:
    """Of a file of `tensors`, by default those of a model of 90 MB."""
    import mmap

    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import hostmesh

    mesh, spec, file = _given.mesh(), _model.spec, folder / "model.safetensors"
    if jax.process_index() == 0:
        _model.write(file, tensors or _model.shapes())
    hostmesh.barrier("written")

    def by_callback() -> object:
        from safetensors.numpy import load_file  # pyright: ignore

        return {
            name: jax.make_array_from_callback(
                x.shape, NamedSharding(mesh, spec(name, x.shape, x.dtype)), x.__getitem__
            )
            for name, x in load_file(file).items()
        }

    wanted = {
        name: jax.ShapeDtypeStruct(
            x.shape,
            x.dtype,
            sharding=NamedSharding(mesh, spec(name, x.shape, x.dtype)),
        )
        for name, x in hostmesh.inspect(file).items()
    }

    def orbax() -> object:
        ocp: Any = importlib.import_module("orbax.checkpoint.experimental.v1")

        with ocp.Context(checkpoint_layout=ocp.options.CheckpointLayout.SAFETENSORS):
            return ocp.load(file, wanted)

    plan: Any = hostmesh.load_safetensors(file, mesh, spec, explain=True)
    own = plan.processes[jax.process_index()].nbytes
    here = NamedSharding(Mesh(np.array(jax.local_devices()[:1]), "x"), PartitionSpec())

    # The bound knows beforehand where all lies.
    stored: Any = hostmesh.load_safetensors(file, mesh, spec)
    first = file.stat().st_size - sum(info.nbytes for info in hostmesh.inspect(file).values())
    places: list[Any] = []
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

    found: Contestants = {
        "one read": bound,
        "own chunks": chunks,
        "hostmesh": lambda: hostmesh.load_safetensors(file, mesh, spec),
    }
    if importlib.util.find_spec("safetensors"):
        found["whole files"] = by_callback
    if importlib.util.find_spec("orbax"):
        found["Orbax"] = orbax
    return found


_BOUNDS = ("one read", "own chunks")
CLAIMS = (
    Claim(
        "load_model",
        "a model of 90 MB onto the mesh, against safetensors' load_file and make_array_from_callback",
        Race(contestants),
        peer="whole files",
        bar=4,
        bounds=_BOUNDS,
        why="rows of chunks are short runs of bytes; copying them, the bound, takes half of the time",
        needs="safetensors",
    ),
    Claim(
        "load_model_orbax",
        "the same against Orbax's loading of that file",
        Race(contestants),
        peer="Orbax",
        bar=6,
        needs="orbax",
    ),
)
