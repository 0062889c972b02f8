"""`save_zarr` and `save_npy` against the packages that read them."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import hostmesh as hm
import meshes
import oracle
from hostmesh._storage import _grid
from hostmesh._storage._shares import Box


def on_mesh(value: np.ndarray, mesh: Any, spec: Any) -> jax.Array:
    return jax.make_array_from_callback(
        value.shape, NamedSharding(mesh, P(*spec)), value.__getitem__
    )


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=3), st.sampled_from([1, 4, 8]))
def test_chunks_divide_shards_and_are_of_bounded_size(shard, itemsize):
    chunk = _grid.chunk_shape(tuple(shard), itemsize)
    assert all(size % n == 0 for size, n in zip(shard, chunk, strict=True))
    assert np.prod(chunk, dtype=object) * itemsize <= _grid.CHUNK_BYTES


def test_who_holds_all_of_a_chunk():
    boxes = (Box(((0, 4),), (0, 1)), Box(((4, 8),), (1, 2)))
    assert _grid.holders_of(((0, 4),), boxes) == (0, 1)
    assert _grid.holders_of(((2, 6),), boxes) == (1,)
    assert _grid.holders_of(((0, 8),), (Box(((0, 4),), (0,)), Box(((4, 8),), (2,)))) == ()


@pytest.mark.multiprocess
def test_arrays_of_every_layout_come_back_from_zarr(tmp_path: Path) -> None:
    import zarr

    values, tree = {}, {}
    for number, (name, kind, spec, _) in enumerate(oracle.layouts()):
        if number % 3:
            continue
        dtype = [np.float32, np.int8, np.bool_, np.complex64, np.float16][number % 5]
        values[f"{name}/{number}"] = value = oracle.noise((16, 8, 8), dtype, number)
        tree.setdefault(name, {})[str(number)] = on_mesh(value, kind.mesh(), spec)
    path = tmp_path / "s.zarr"
    for _ in range(2):  # the second time in place of the first
        hm.save_zarr(path, tree)
        group = zarr.open_group(path, mode="r")
        for name, value in values.items():
            oracle.assert_bits_equal(group[name][...], value, name)
        hm.barrier("read")
    assert os.listdir(tmp_path) == ["s.zarr"]
    hm.barrier("listed")  # before the next save makes its own
    zero = np.full((16, 4), -0.0, np.float32)  # equal to zarr's fill value, but for its bits
    hm.save_zarr(path, {"zero": on_mesh(zero, meshes.KINDS["flat"].mesh(), ("x",))})
    oracle.assert_bits_equal(zarr.open_group(path, mode="r")["zero"][...], zero)
    hm.barrier("read zeros")
    value = oracle.noise((64, 6), np.float32)
    array = on_mesh(value, meshes.KINDS["flat"].mesh(), ())
    plan = hm.save_zarr(path, array, chunks=(4, 6), explain=True)
    assert set(plan.written.values()) == {value.nbytes // 4}
    hm.save_zarr(path, array, chunks=(4, 6))
    oracle.assert_bits_equal(zarr.open_array(path, mode="r")[...], value)
    hm.barrier("read")
    cut = on_mesh(value, meshes.KINDS["flat"].mesh(), ("x",))
    with pytest.raises(hm.StorageError, match="no process holds all of"):
        hm.save_zarr(path, cut, chunks=(32, 6))
    oracle.assert_bits_equal(zarr.open_array(path, mode="r")[...], value)
    hm.barrier("read")


def test_what_is_no_store_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "file").touch()
    with pytest.raises(hm.StorageError, match="is no zarr store"):
        hm.save_zarr(tmp_path / "home", np.ones(3))
    assert (tmp_path / "home" / "file").exists()
    hm.save_zarr(tmp_path / "new", np.ones(3))
    hm.save_zarr(tmp_path / "new", np.zeros(3))  # zarr's fill value: as many chunks
    assert (tmp_path / "new" / "c" / "0").is_file()
    assert sorted(os.listdir(tmp_path)) == ["home", "new"]


@pytest.mark.multiprocess
def test_npy_files_are_what_numpy_writes(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    for number, (_, kind, spec, _) in enumerate(oracle.layouts()):
        dtype = [np.float32, np.int8, np.bool_, np.complex64, np.float16][number % 5]
        value = oracle.noise((16, 8, 8), dtype, number)
        hm.save_npy(path, on_mesh(value, kind.mesh(), spec))
        expected = io.BytesIO()
        np.save(expected, value)
        assert path.read_bytes() == expected.getvalue()
        hm.barrier("read")


@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (3, 1)])
def test_npy_files_of_one_process(tmp_path: Path, shape: tuple[int, ...]) -> None:
    value = oracle.noise(shape, np.float64)
    hm.save_npy(tmp_path / "x.npy", value)
    expected = io.BytesIO()
    np.save(expected, value)
    assert (tmp_path / "x.npy").read_bytes() == expected.getvalue()
    with pytest.raises(hm.StorageError, match="bfloat16"):
        hm.save_npy(tmp_path / "x.npy", jax.numpy.ones(3, "bfloat16"))
