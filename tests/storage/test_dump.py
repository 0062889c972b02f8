"""`dump_local` and `load_local`: a step's arrays, looked at without the cluster that made them."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hostmesh as hm
import meshes
import oracle

DTYPES = [np.float32, np.complex64, np.bool_, ml_dtypes.bfloat16, ml_dtypes.int4]


def example() -> tuple[dict[str, jax.Array], dict[str, np.ndarray]]:
    """Arrays of every kind of mesh and spec, and their values."""
    arrays, values = {}, {}
    for number, (name, kind, spec, _) in enumerate(oracle.layouts()):
        key = f"{name}.{number}"
        values[key] = oracle.noise((16, 8, 8), DTYPES[number % len(DTYPES)], number)
        sharding = NamedSharding(kind.mesh(), P(*spec))
        arrays[key] = jax.make_array_from_callback(
            values[key].shape, sharding, values[key].__getitem__
        )
    return arrays, values


@pytest.mark.multiprocess
def test_what_processes_dump_one_process_reads(tmp_path: Path) -> None:
    arrays, values = example()
    arrays |= {"key": jax.random.key(5), "step": np.int64(2**40)}
    for _ in range(2):  # the second time in place of the first
        hm.dump_local(arrays, tmp_path)
    hm.barrier("all have dumped")
    assert len(list(tmp_path.iterdir())) == jax.process_count()
    for mesh in (None, Mesh(jax.local_devices(), "x")):
        found = hm.load_local(tmp_path, mesh)
        assert found.keys() == arrays.keys()
        for name, value in values.items():
            assert np.asarray(found[name]).tobytes() == value.tobytes(), name
        assert (jax.random.key_data(found["key"]) == jax.random.key_data(jax.random.key(5))).all()
        if mesh is None:
            assert found["step"] == 2**40
            assert found["step"].dtype == np.int64
        arrays.pop("step", None)  # too large for a device without x64
        hm.barrier("all have read")
        hm.dump_local(arrays, tmp_path)
        hm.barrier("all have dumped again")


@pytest.mark.multiprocess
def test_the_specs_that_arrays_had_cut_them_again(tmp_path: Path) -> None:
    kind = meshes.KINDS["interleaved"]
    mesh = kind.mesh()
    x = hm.to_global(np.ones((8, 4), np.float32), mesh, P(mesh.axis_names), global_shape=(8, 4))
    hm.dump_local({"x": x}, tmp_path)
    hm.barrier("all have dumped")
    again = hm.load_local(tmp_path, mesh)["x"]
    assert again.sharding.is_equivalent_to(x.sharding, 2)
    other = Mesh(jax.local_devices(), mesh.axis_names[:1])
    assert hm.load_local(tmp_path, other)["x"].sharding.spec == P(mesh.axis_names[:1], None)


@pytest.mark.multiprocess
def test_replicas_that_differ_are_told_of(tmp_path: Path) -> None:
    value = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    mesh = meshes.KINDS["flat"].mesh()
    if jax.process_index() == 2:
        value[1, 2] = 7
    x = hm.to_global(value, mesh, P())
    hm.dump_local({"x": x}, tmp_path)
    hm.barrier("all have dumped")
    with pytest.warns(UserWarning, match="differs") as caught:
        found = hm.load_local(tmp_path)
    (told,) = caught
    assert "'x' differs between process 0 and process 2 in 1 of 6 elements" in str(told.message)
    assert "first at (1, 2): 5.0 and 7.0" in str(told.message)
    assert found["x"][1, 2] == 5


@pytest.mark.multiprocess
def test_what_is_missing_names_its_processes(tmp_path: Path) -> None:
    mesh = meshes.KINDS["flat"].mesh()
    x = hm.to_global(np.full(2, jax.process_index(), np.float32), mesh, P(mesh.axis_names))
    if jax.process_index() != 2:
        hm.dump_local({"x": x, "y": np.ones(2)}, tmp_path)
    hm.barrier("all have dumped")
    with pytest.raises(hm.StorageError, match=r"2 of 8 elements in no file\n.*process 2\n"):
        hm.load_local(tmp_path)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda leaves: leaves["x"].update(shape=[1]),
        lambda leaves: leaves["x"].update(dtype="no such"),
        lambda leaves: leaves["x"].update(dtype="complex128"),
        lambda leaves: leaves["x"].update(chunks={"y": [[0, 2]]}),
        lambda leaves: leaves["x"].update(chunks={"x[0:2]": [[0, 9]]}),
        lambda leaves: leaves["x"].update(chunks={"x[0:2]": 5}),
        lambda leaves: leaves["x"].pop("key"),
        lambda leaves: leaves.update(x=None),
    ],
)
def test_what_is_no_dump_is_refused(tmp_path: Path, spoil) -> None:
    hm.dump_local({"x": np.ones(2, np.float32)}, tmp_path)
    (file,) = tmp_path.iterdir()
    with safetensors.safe_open(file, "numpy") as opened:
        told = json.loads(opened.metadata()["hostmesh.dump"])
    spoil(told["leaves"])
    safetensors.numpy.save_file(
        {"x[0:2]": np.ones(2, np.float32)}, file, {"hostmesh.dump": json.dumps(told)}
    )
    with pytest.raises(hm.StorageError, match=r"none of dump_local's"):
        hm.load_local(tmp_path)


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(hm.StorageError, match="no process"):
        hm.load_local(tmp_path)
    with pytest.raises(hm.StorageError, match="No such file"):
        hm.load_local(tmp_path / "none")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hm.dump_local({"x": np.zeros((0, 3))}, tmp_path / "new")
        assert hm.load_local(tmp_path / "new")["x"].shape == (0, 3)
    (tmp_path / "file").write_text("")
    with pytest.raises(hm.StorageError, match="room and permission"):
        hm.dump_local({"x": np.ones(1)}, tmp_path / "file")
