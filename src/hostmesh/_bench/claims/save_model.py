"""A model to one file from all processes, made durable. The bound is one write of as many bytes."""

from __future__ import annotations

import importlib
import importlib.util
import os
from pathlib import Path
from typing import Any

from .._claim import Claim, Contestants, Race
from . import _given, _model


def contestants(folder: Path) -> Contestants:
    import shutil

    import jax
    import numpy as np
    from jax.experimental import multihost_utils
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    import hostmesh as hm

    me, mesh = jax.process_index(), _given.mesh()

    def spec_of(name: str, shape: tuple[int, ...]) -> P:
        # The embeddings' 30,522 rows are cut by 2 alone.
        words = "word_embeddings" in name and shape[0] % jax.local_device_count() == 0
        return P("y") if words else _model.spec(name, shape, np.float32)

    def on_mesh(value: Any, spec: P) -> jax.Array:
        return jax.make_array_from_callback(
            value.shape, NamedSharding(mesh, spec), lambda index: value[index]
        )

    random = np.random.default_rng(0)
    values = {
        name: random.standard_normal(shape, np.float32) for name, shape in _model.shapes().items()
    }
    tree = {name: on_mesh(x, spec_of(name, x.shape)) for name, x in values.items()}
    data = b"".join(x.tobytes() for x in values.values())
    number = 0

    def gather_and_write() -> None:
        from safetensors.numpy import save_file  # pyright: ignore

        whole: Any = multihost_utils.process_allgather(tree, tiled=True)
        if me == 0:
            temporary, final = folder / "theirs.tmp", folder / "theirs"
            save_file(whole, temporary)
            descriptor = os.open(temporary, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
            os.replace(temporary, final)
            descriptor = os.open(folder, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        multihost_utils.sync_global_devices("saved")

    def orbax() -> None:
        ocp: Any = importlib.import_module("orbax.checkpoint.experimental.v1")

        nonlocal number
        number += 1
        ocp.save(folder / f"orbax{number}", tree)
        if me == 0 and number > 1:
            shutil.rmtree(folder / f"orbax{number - 1}")

    def probe() -> None:
        """What the disk takes for as many bytes from one process: written, and made durable."""
        if me == 0:
            descriptor = os.open(folder / "probe", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.pwrite(descriptor, data, 0)
            os.fsync(descriptor)
            os.close(descriptor)
        multihost_utils.sync_global_devices("probed")

    found: Contestants = {
        "one write": probe,
        "hostmesh": lambda: hm.save_safetensors(folder / "ours", tree),
    }
    if importlib.util.find_spec("safetensors"):
        found["gather, write"] = gather_and_write
    if importlib.util.find_spec("orbax"):
        found["Orbax"] = orbax
    return found


_RACE = Race(contestants)
CLAIMS = (
    Claim(
        "save_model",
        "a model of 90 MB to one file, against process_allgather and one writer; both with fsync",
        _RACE,
        peer="gather, write",
        bar=4,
        bounds=("one write",),
        needs="safetensors",
    ),
    Claim(
        "save_model_orbax",
        "the same against Orbax",
        _RACE,
        peer="Orbax",
        bar=2,
        needs="orbax",
    ),
)
