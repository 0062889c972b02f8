"""`save_safetensors`: byte for byte what the safetensors package writes, whoever holds what."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import hostmesh as hm
import meshes
import oracle
from apis import both

DTYPES = [
    *(bool, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64),
    *(np.float16, np.float32, np.float64, np.complex64, ml_dtypes.bfloat16),
    *(ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2),
    *(ml_dtypes.float8_e5m2fnuz, ml_dtypes.float8_e8m0fnu),
]


def package_bytes(tensors: dict[str, np.ndarray], metadata: Any = None) -> bytes:
    kinds = {
        name: safetensors.TensorSpec(
            dtype=x.dtype.name, shape=x.shape, data_ptr=x.ctypes.data, data_len=x.nbytes
        )
        for name, x in tensors.items()
    }
    return bytes(safetensors.serialize(kinds, metadata))


def on_mesh(value: np.ndarray, mesh: Any, spec: Any) -> jax.Array:
    """The whole value, which every process has, on devices."""
    sharding = NamedSharding(mesh, P(*spec))
    return jax.make_array_from_callback(value.shape, sharding, value.__getitem__)


def random_tree(seed: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A tree of arrays on one of all kinds of mesh, and their values by name."""
    random = np.random.default_rng(seed)
    kinds = list(meshes.KINDS.values())
    tree: dict[str, Any] = {}
    values: dict[str, np.ndarray] = {}
    for number in range(int(random.integers(0, 12))):
        kind = kinds[random.integers(len(kinds))]
        mesh = kind.mesh()
        rank = int(random.integers(0, 4))
        spec = meshes.specs(kind)[random.integers(8)]
        if len(spec) > rank:
            spec = ()
        cuts = oracle.Layout(kind.axes, kind.owners, oracle.cuts_of(spec, rank)).counts
        factors = random.choice([0, 1, 1, 2, 3, 5, 17], rank)
        shape = tuple(int(n * f) for n, f in zip(cuts, factors, strict=True))
        value = oracle.noise(shape, DTYPES[(seed + number) % len(DTYPES)], seed)
        name = f"{random.integers(100)}.{number}"
        values[f"group.{name}"] = value
        is_host = random.random() < 0.2
        tree[name] = value if is_host else on_mesh(value, mesh, spec)
    return {"group": tree}, values


@both
def test_a_hundred_random_trees_are_what_the_package_writes(public: bool, tmp_path: Path) -> None:
    """Kinds of mesh, specs, dtypes, ranks and sizes at random, empty and odd ones among them."""
    with jax.enable_x64(True):
        for seed in range(4 if public else 100):
            tree, values = random_tree(seed)
            metadata = {"seed": str(seed)} if seed % 2 else None
            path = tmp_path / f"{seed % 3}.safetensors"
            hm.save_safetensors(path, tree, metadata=metadata)
            assert path.read_bytes() == package_bytes(values, metadata), seed
    assert sorted(os.listdir(tmp_path)) == ["0.safetensors", "1.safetensors", "2.safetensors"]
    hm.barrier("read")


@pytest.mark.multiprocess
def test_bytes_are_written_once_and_evenly(tmp_path: Path, monkeypatch: Any) -> None:
    """Counted at the system calls, against the file's size and the plan."""
    kind = meshes.KINDS["block"]
    mesh = kind.mesh()
    tree = {
        f"{name}{size}": on_mesh(oracle.noise((size, 64), np.float32, size), mesh, spec)
        for name, spec in {"a": (), "x": ("x",), "y": (None, "y"), "xy": (("x", "y"),)}.items()
        for size in (8, 64, 4000)
    }
    tree["odd"] = on_mesh(oracle.noise((99_991,), np.int8), mesh, ())
    tree["host"] = oracle.noise((10_007, 3), np.float16)
    counted = 0

    def counting(name: str) -> Any:
        original = getattr(os, name)

        def call(*args: Any) -> int:
            nonlocal counted
            wrote = original(*args)
            counted += wrote
            return wrote

        return call

    for name in ("pwrite", "pwritev"):
        monkeypatch.setattr(os, name, counting(name))
    path = tmp_path / "m.safetensors"
    hm.save_safetensors(path, tree)
    every = hm.allgather(counted).tolist()
    size = path.stat().st_size
    assert sum(every) == size
    assert max(every) <= 1.1 * size / 4
    plan = hm.save_safetensors(path, tree, explain=True)
    assert plan.files == {"m.safetensors": size}
    assert plan.imbalance <= 1.1
    head = size - sum(plan.written.values())
    assert every == [n + head * (p == 0) for p, n in plan.written.items()]
    assert f"process 3 writes {plan.written[3]:,} bytes" in str(plan)
    assert "m.safetensors: " in str(plan)
    # Whole where devices lie side by side: no run is cut to a column's width.
    assert max(plan.calls.values()) < 60
    found = safetensors.numpy.load_file(path)
    for name, value in found.items():
        if name != "host":
            assert all(
                np.array_equal(shard.data, value[shard.index], equal_nan=True)
                for shard in tree[name].addressable_shards
            )
    hm.barrier("read")


@pytest.mark.multiprocess
def test_a_process_without_devices_takes_part(tmp_path: Path) -> None:
    part = meshes.Kind(("x",), np.arange(4)).mesh()
    value = oracle.noise((64, 3), np.float32)
    array = hm.from_callback(value.shape, part, P("x"), value.__getitem__, dtype=value.dtype)
    hm.save_safetensors(tmp_path / "m", {"w": array})
    assert (tmp_path / "m").read_bytes() == package_bytes({"w": value})
    hm.barrier("read")


@pytest.mark.multiprocess
def test_several_files_as_hugging_face_names_them(tmp_path: Path) -> None:
    mesh = meshes.KINDS["interleaved"].mesh()
    values = {f"layer.{i}": oracle.noise((64, i), np.float32, i) for i in range(1, 7)}
    tree = {name: on_mesh(value, mesh, ("x",)) for name, value in values.items()}
    path = tmp_path / "model.safetensors"
    index = tmp_path / "model.safetensors.index.json"

    def check(prefix: str) -> None:
        words = json.loads(index.read_text())
        assert words["metadata"] == {"total_size": sum(v.nbytes for v in values.values())}
        assert words["weight_map"] == {
            f"layer.{i}": f"{prefix}-0000{n}-of-00003.safetensors"
            for i, n in zip(range(1, 7), [1, 1, 1, 2, 2, 3], strict=True)
        }
        for number, group in enumerate([(1, 2, 3), (4, 5), (6,)], 1):
            file = tmp_path / f"{prefix}-0000{number}-of-00003.safetensors"
            own = {f"layer.{i}": values[f"layer.{i}"] for i in group}
            assert file.read_bytes() == package_bytes(own, {"format": "np"})
        assert len(os.listdir(tmp_path)) == 4
        hm.barrier("read")

    def save(most: int | None) -> None:
        hm.save_safetensors(path, tree, max_file_bytes=most, metadata={"format": "np"})

    most = 9 * 64 * 4
    plan = hm.save_safetensors(path, tree, max_file_bytes=most, explain=True)
    assert next(iter(plan.files)) == index.name
    save(most)
    check("model")
    save(
        most
    )  # over files of the same names, which the old index speaks of until the new one is there
    check("model.g2")
    save(most)
    check("model")
    save(None)  # one file takes the place of all
    assert os.listdir(tmp_path) == ["model.safetensors"]
    hm.barrier("read")
    save(most)
    check("model")


@pytest.mark.multiprocess
def test_what_differs_between_processes_is_an_error_on_all(tmp_path: Path) -> None:
    me = jax.process_index()
    path = tmp_path / "m.safetensors"
    mesh = meshes.KINDS["block"].mesh()
    hm.save_safetensors(path, {"w": np.arange(3)})
    before = path.read_bytes()
    odd = me == 2
    w = on_mesh(np.zeros(8, np.float32), mesh, ())
    for trees, word in (
        ((np.arange(3), np.arange(3) + odd), "host values"),
        ((np.arange(3), np.arange(3 + odd)), "names, shapes and dtypes"),
        ((w, on_mesh(np.zeros(8, np.float32), mesh, ("x",) if odd else ())), "layouts"),
    ):
        with pytest.raises(hm.DivergenceError, match="process 2") as caught:
            hm.save_safetensors(path, {"w": trees[1]})
        assert word in str(caught.value)
        assert path.read_bytes() == before
        hm.save_safetensors(tmp_path / "other", {"w": trees[0]})
    for bad in ("text", {"a": {"b": 1}, "a.b": 1}):
        with pytest.raises(hm.HostmeshError) as caught:
            hm.save_safetensors(path, {"w": bad if odd else 1})
        assert isinstance(caught.value, hm.ClusterError) != odd
    hm.barrier("failed")
    assert sorted(os.listdir(tmp_path)) == ["m.safetensors", "other"]
    hm.barrier("read")


@pytest.mark.multiprocess
def test_replicas_that_differ_are_found_where_that_is_asked_for(tmp_path: Path) -> None:
    me = jax.process_index()
    mesh = meshes.KINDS["block"].mesh()
    shards = [jax.device_put(np.full(4, me == 1, np.float32), d) for d in jax.local_devices()]
    unlike = hm.from_shards((4,), NamedSharding(mesh, P()), shards)
    path = tmp_path / "m.safetensors"
    with pytest.raises(hm.DivergenceError, match="process 1"):
        hm.save_safetensors(path, {"w": unlike, "v": 1}, replicas="check")
    assert os.listdir(tmp_path) == []
    hm.barrier("looked")
    alike = {
        "cut": on_mesh(np.arange(8.0), mesh, ("x",)),
        "parts": on_mesh(np.arange(8.0).reshape(2, 4), mesh, (None, "y")),
        "w": on_mesh(np.ones(4), mesh, ()),
        "v": 1,
    }
    hm.save_safetensors(path, alike, replicas="check")
    hm.save_zarr(tmp_path / "m.zarr", alike, replicas="check")
    hm.save_npy(tmp_path / "m.npy", alike["parts"], replicas="check")
    assert path.exists()
    hm.barrier("read")
    # Of a chunk that processes 1 and another hold; the rest is alike.
    host = np.arange(16, dtype=np.float32).reshape(4, 4)
    own = hm.to_global(host + (me == 1), mesh, P("y", None), global_shape=(4, 4))
    for save in (hm.save_safetensors, hm.save_zarr):
        with pytest.raises(hm.DivergenceError, match=r"leaf \['a'\]\['w'\], chunk .*process 1"):
            save(tmp_path / "other", {"a": {"w": own}, "v": 1}, replicas="check")
    with pytest.raises(hm.DivergenceError, match="the value, chunk"):
        hm.save_npy(tmp_path / "other", own, replicas="check")


def test_one_process_saves_numbers_numpy_and_arrays(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    swapped = np.arange(6, dtype=">f4").reshape(2, 3).T
    tree = {"n": 3, "x": [1.5, jnp.arange(4)], "t": swapped, "b": jnp.ones(3, jnp.bfloat16)}
    hm.save_safetensors(str(path), tree)
    expected = {
        "n": np.asarray(3),
        "x.0": np.asarray(1.5),
        "x.1": np.arange(4, dtype=np.int32),
        "t": np.ascontiguousarray(swapped.astype("<f4")),
        "b": np.ones(3, ml_dtypes.bfloat16),
    }
    assert path.read_bytes() == package_bytes(expected)
    hm.save_safetensors(path, {})
    assert path.read_bytes() == package_bytes({})


@pytest.mark.parametrize(
    ("path", "tree", "options", "error", "words"),
    [
        ("m", np.ones(3), {}, hm.StorageError, "single ndarray"),
        ("m", {"k": jax.random.key(0)}, {}, hm.StorageError, "key_data"),
        ("m", {"w": np.ones(3, complex)}, {}, hm.StorageError, "complex128"),
        ("m", {"w": jnp.ones(2, jnp.int4)}, {}, hm.StorageError, "int4"),
        ("m", {"w": "text"}, {}, hm.ShapeError, "'w'"),
        ("gs://bucket/m", {}, {}, hm.StorageError, "upload"),
        ("m", {}, {"replicas": "all"}, hm.SpecError, "'check'"),
        ("m", {}, {"max_file_bytes": 0}, hm.SpecError, "at least 1"),
        ("none/m", {"w": 1}, {}, hm.StorageError, "No such file or directory"),
        ("m", {"w": 1}, {"metadata": {"a": 1}}, hm.StorageError, "strings"),
    ],
)
def test_what_cannot_be_saved(tmp_path: Path, monkeypatch, path, tree, options, error, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error) as caught:
        hm.save_safetensors(path, tree, **options)
    assert words in str(caught.value)
    assert "do:" in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_left_overs_go_with_the_next_save(tmp_path: Path, caplog: Any) -> None:
    path = tmp_path / "m.safetensors"
    dead = tmp_path / f".{path.name}.hostmesh-{'0' * 16}-00000.tmp"
    dead.write_bytes(b"half")
    others = [".n.safetensors.hostmesh-00-00000.tmp", "m.safetensors.tmp", ".m.safetensors.swp"]
    for other in others:
        (tmp_path / other).touch()
    with caplog.at_level(logging.WARNING, logger="hostmesh"):
        hm.save_safetensors(path, {"w": 1})
    assert sorted(os.listdir(tmp_path)) == sorted([path.name, *others])
    assert dead.name in caplog.text


def test_a_save_that_is_under_way_is_no_left_over(tmp_path: Path) -> None:
    from hostmesh._storage import _atomic

    path = tmp_path / "m"
    running = _atomic.Temporaries(path, "ab", [path])
    running.make([b"x"], [1])
    assert _atomic.remove_left_overs(path) == []
    running.remove()
    assert os.listdir(tmp_path) == []


def _saved_in_shards(folder: Path) -> tuple[Path, dict[str, Any], Path, dict[str, bytes]]:
    """The path and the tree of a save in several files, its index, and all files' contents."""
    path, tree = folder / "m.safetensors", {name: np.zeros(10) for name in "abc"}
    hm.save_safetensors(path, tree, max_file_bytes=100)
    contents = {name: (folder / name).read_bytes() for name in os.listdir(folder)}
    return path, tree, folder / "m.safetensors.index.json", contents


def test_shards_of_a_save_that_died_before_its_index_go_too(tmp_path: Path) -> None:
    path, _, index, before = _saved_in_shards(tmp_path)
    # As if it had been killed before the last rename: shards are there, and the index is not.
    words = index.read_text().replace("m-0", "m.g2-0")
    (tmp_path / f".{path.name}.hostmesh-ab-00000.tmp").write_text(words)
    (tmp_path / "m.g2-00001-of-00003.safetensors").touch()
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    hm.save_safetensors(path, {"w": 1})
    assert os.listdir(tmp_path) == [path.name]


def test_shards_that_were_to_be_removed_when_a_save_died_go_too(tmp_path: Path) -> None:
    path, tree, index, old = _saved_in_shards(tmp_path)
    hm.save_safetensors(path, tree, max_file_bytes=100)
    # As if it had been killed right after the last rename.
    note = tmp_path / f".{path.name}.hostmesh-ab-00004.tmp"
    note.write_bytes(old.pop(index.name))
    for name, contents in old.items():
        (tmp_path / name).write_bytes(contents)
    kept = json.loads(index.read_text())["weight_map"].values()
    hm.save_safetensors(path, tree, max_file_bytes=100)
    assert len(os.listdir(tmp_path)) == 4
    assert not set(kept) & set(os.listdir(tmp_path))


def test_modes_and_links(tmp_path: Path) -> None:
    """As any new file has it; a link, as into a cache of models, is replaced and not followed."""
    blob, path = tmp_path / "blob", tmp_path / "m"
    blob.write_bytes(b"shared")
    path.symlink_to(blob)
    hm.save_safetensors(path, {"w": 1})
    (tmp_path / "usual").touch()
    assert blob.read_bytes() == b"shared"
    assert not path.is_symlink()
    assert path.stat().st_mode == (tmp_path / "usual").stat().st_mode
