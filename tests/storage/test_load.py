"""Loading on 4 processes: every shard against the safetensors package and NumPy."""

from __future__ import annotations

import pathlib
import random

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from jax.sharding import PartitionSpec as P

import hostmesh as hm
import meshes

MESH = meshes.KINDS["block"]


def check(array, value):
    for shard in array.addressable_shards:
        got = np.asarray(shard.data)
        want = np.asarray(value[shard.index])
        assert got.dtype == want.dtype
        assert got.tobytes() == want.tobytes()


def write(folder, tensors):
    """A file written by process 0."""
    file = pathlib.Path(hm.broadcast_object(str(folder))) / "t.safetensors"
    if jax.process_index() == 0:
        safetensors.numpy.save_file(tensors, file)
    hm.barrier("written")
    return file


@pytest.mark.multiprocess(processes=4, devices=2)
def test_join_transpose_dtype_select_and_rename_on_every_mesh(tmp_path):
    rng = np.random.default_rng(0)
    tensors = {f"t.{n}": rng.standard_normal((16, 8, 24)).astype(np.float32) for n in range(12)}
    file = write(tmp_path, tensors)
    draw = random.Random(1)
    for _ in range(200):
        kind = draw.choice(list(meshes.KINDS.values()))
        spec = P(*draw.choice(meshes.specs(kind)))
        axes = draw.choice([None, (0, 2, 1), (2, 0, 1), (1, 0, 2)])
        stack, axis = draw.random() < 0.3, draw.choice([0, 1, 2, -1])
        names = sorted(draw.sample(range(12), draw.choice([2, 4])))
        dtype = draw.choice([None, ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e4m3fn])
        parts = [tensors[f"t.{n}"] for n in names]
        turned = [x if axes is None else x.transpose(axes) for x in parts]
        value = np.stack(turned, axis) if stack else np.concatenate(turned, axis)
        value = value if dtype is None else value.astype(dtype)
        cut = [1 if a is None else np.prod([dict(kind.axes)[n] for n in ((a,) if isinstance(a, str) else a)], dtype=int) for a in spec]  # fmt: skip
        if any(size % n for size, n in zip(value.shape, cut, strict=False)):
            spec = P()
        arrays = hm.load_safetensors(
            file,
            kind.mesh(),
            spec,
            dtype=dtype,
            select=[f"t.{n}" for n in names],
            rename=lambda name: name.replace("t.", "u."),
            transpose=None if axes is None else {"u.*": axes},
            join={"all": hm.Join("u.*", axis, stack)},
            replicas=draw.choice(["auto", "once", "read"]),
        )
        assert list(arrays) == ["all"]
        check(arrays["all"], value)


@pytest.mark.multiprocess(processes=4, devices=2)
def test_a_file_that_one_process_lacks_is_an_error_on_all(tmp_path):
    file = write(tmp_path, {"w": np.ones((16, 8), np.float32)})
    mine = file if jax.process_index() != 2 else file.with_name("gone.safetensors")
    kind = hm.StorageError if jax.process_index() == 2 else hm.ClusterError
    with pytest.raises(kind, match=r"gone\.safetensors"):
        hm.load_safetensors(mine, MESH.mesh(), P("x"))
    hm.barrier("together")


def test_npy_and_npz(tmp_path):
    mesh = jax.sharding.Mesh(jax.devices()[:1], "x")
    value = np.arange(24, dtype=">f4").reshape(4, 6)
    for each in (value, np.asfortranarray(value)):
        np.save(tmp_path / "a.npy", each)
        check(hm.load_npy(tmp_path / "a.npy", mesh, P("x")), value.astype("f4"))
        for save in (np.savez, np.savez_compressed):
            save(tmp_path / "a.npz", w=each, b=each[0])
            found = hm.load_npy(tmp_path / "a.npz", mesh, P("x"))
            check(found["w"], value.astype("f4"))
            check(found["b"], value[0].astype("f4"))


def test_one_error_lists_all_names():
    with pytest.raises(hm.StorageError, match="No such file"):
        hm.load_safetensors("/nowhere", None, P())


def mutated(data, rng):
    data = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(min(len(data), 400)) if rng.random() < 0.8 else rng.randrange(len(data))
        way = rng.randrange(4)
        if way == 0:
            data[at] = rng.randrange(256)
        elif way == 1:
            del data[at : at + rng.randint(1, 40)]
        elif way == 2:
            data[at:at] = bytes(rng.choices(range(256), k=rng.randint(1, 8)))
        else:
            data[at : at + 1] = str(rng.choice([0, -1, 2**31, 2**63, 10**25])).encode()
        if not data:
            break
    return bytes(data)


def test_malformed_files_end_in_our_error_or_the_right_result(tmp_path):
    mesh = jax.sharding.Mesh(jax.devices()[:1], "x")
    value = np.arange(32, dtype=np.float32).reshape(8, 4)
    safetensors.numpy.save_file({"w": value, "b": value[0]}, tmp_path / "m.safetensors")
    np.save(tmp_path / "m.npy", value)
    np.savez(tmp_path / "m.npz", w=value)
    np.savez_compressed(tmp_path / "c.npz", w=value)
    (tmp_path / "m.safetensors.index.json").write_text(
        '{"metadata": {}, "weight_map": {"w": "m.safetensors", "b": "m.safetensors"}}'
    )
    names = ["m.safetensors", "m.npy", "m.npz", "c.npz", "m.safetensors.index.json"]
    rng = random.Random(5)
    refused = 0
    for number in range(300):
        name = names[number % len(names)]
        bad = tmp_path / f"bad-{name}"
        bad.write_bytes(mutated((tmp_path / name).read_bytes(), rng))
        load = hm.load_npy if "np" in name.rpartition(".")[2] else hm.load_safetensors
        try:
            load(bad, mesh, P())
        except hm.HostmeshError:
            refused += 1
    assert refused > 100
