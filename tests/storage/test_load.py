"""Loading on 4 processes: every shard against the safetensors package and NumPy."""

from __future__ import annotations

import pathlib

import jax
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


@pytest.mark.multiprocess(processes=4, devices=2)
@pytest.mark.parametrize("replicas", ["read", "once"])
def test_arrays_of_no_dimension_and_of_no_element(tmp_path, replicas):
    tensors = {
        "one": np.full((), 7, np.float32),
        "two": np.full((), -3, np.int8),
        "none": np.zeros((0, 8), np.float32),
    }
    file = write(tmp_path, tensors)
    for _ in range(2):
        arrays = hm.load_safetensors(
            file, MESH.mesh(), P(), join={"both": hm.Join(["one"], stack=True)}, replicas=replicas
        )
        check(arrays["both"], tensors["one"][None])
        check(arrays["two"], tensors["two"])
        check(arrays["none"], tensors["none"])


@pytest.mark.parametrize("form", [2, 3])
def test_a_blosc_chunk_that_is_cut_short_is_refused(tmp_path, form):
    """numcodecs itself reads on into whatever lies behind it."""
    import numcodecs
    import zarr

    codec = numcodecs.Blosc() if form == 2 else zarr.codecs.BloscCodec()
    value = np.arange(32, dtype=np.float32).reshape(8, 4)
    array = zarr.create_array(
        tmp_path / "x", shape=(8, 4), chunks=(4, 4), dtype="f4", compressors=codec, zarr_format=form
    )
    array[...] = value
    mesh = jax.sharding.Mesh(jax.devices()[:1], "x")
    check(hm.load_zarr(tmp_path / "x", mesh, P()), value)
    chunk = tmp_path / "x" / ("1.0" if form == 2 else "c/1/0")
    chunk.write_bytes(chunk.read_bytes()[:-9])
    with pytest.raises(hm.StorageError, match=r"1.0.: 71 bytes, where its own header says 80"):
        hm.load_zarr(tmp_path / "x", mesh, P())


def test_more_than_the_memory_there_is_is_our_error(tmp_path):
    import zarr

    zarr.create_array(tmp_path / "x", shape=(2**40, 4), chunks=(4, 4), dtype="f4")
    mesh = jax.sharding.Mesh(jax.devices()[:1], "x")
    with pytest.raises(hm.StorageError, match=r"17592186044416 bytes of chunks(.|\n)*claims more"):
        hm.load_zarr(tmp_path / "x", mesh, P())
