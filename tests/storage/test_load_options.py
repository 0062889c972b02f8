"""The options of loading: what they do, and what they say where they cannot."""

from __future__ import annotations

import builtins
import random
import re
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import hostmesh as hm
import meshes
import oracle

MESH = meshes.KINDS["block"]


def write(folder: Path, tensors: dict[str, np.ndarray], name: str = "t.safetensors") -> Path:
    """A file that process 0 writes."""
    file = folder / name
    if jax.process_index() == 0:
        safetensors.numpy.save_file(tensors, file)
    hm.barrier("written")
    return file


def check(array: jax.Array, value: np.ndarray, what: object = "") -> None:
    assert array.shape == value.shape, what
    for shard in array.addressable_shards:
        oracle.assert_bits_equal(np.asarray(shard.data), value[shard.index], what)


# --- like


@pytest.mark.multiprocess
def test_like_fills_a_tree(tmp_path: Path) -> None:
    mesh = MESH.mesh()
    w, b = np.arange(64, dtype=np.float32).reshape(16, 4), np.arange(8, dtype=np.float32)
    file = write(tmp_path, {"net.layers.0": w, "net.bias": b, "step": np.int32([7])})
    cut = NamedSharding(mesh, P("x", "y"))
    like = {
        "net": {
            "layers": [jax.ShapeDtypeStruct((16, 4), jnp.bfloat16, sharding=cut)],
            "bias": jax.ShapeDtypeStruct((8,), jnp.float32, sharding=NamedSharding(mesh, P())),
        },
        "step": hm.to_global(np.int32([0]), mesh, P()),
    }
    tree = hm.load_safetensors(file, None, None, like=like)
    assert jax.tree.structure(tree) == jax.tree.structure(like)
    assert tree["net"]["layers"][0].sharding == cut
    check(tree["net"]["layers"][0], w.astype(ml_dtypes.bfloat16))
    check(tree["net"]["bias"], b)
    check(tree["step"], np.int32([7]))
    tree = hm.load_safetensors(file, mesh, P(), like=like, dtype=np.float16)  # both go before it
    check(tree["net"]["layers"][0], w.astype(np.float16))
    assert tree["net"]["layers"][0].sharding.spec == P()
    for change, kind, words in [
        ({"more": like["step"]}, hm.SpecError, "missing: 'more'"),
        ({"step": None}, hm.SpecError, "left over: 'step'"),
        ({"step": np.zeros(3)}, hm.ShapeError, r"of another shape: 'step' \[1\], not \[3\]"),
    ]:
        with pytest.raises(kind, match=words) as caught:
            hm.load_safetensors(file, mesh, P(), like=like | change)
        assert f"on process {jax.process_index()}" in str(caught.value)


@pytest.mark.multiprocess
def test_a_tree_of_specs_loads_what_was_saved_with_it(tmp_path: Path) -> None:
    mesh = MESH.mesh()
    specs = {"layers": [{"w": P("x", "y")}, {"w": P(None, "x")}], "bias": P()}
    values = {
        "layers": [{"w": np.arange(64.0).reshape(16, 4)}, {"w": np.ones((2, 8))}],
        "bias": np.arange(3.0),
    }
    values = jax.tree.map(np.float32, values)
    tree = hm.to_global(values, mesh, specs, global_shape=jax.tree.map(np.shape, values))
    is_spec = lambda leaf: isinstance(leaf, P)  # noqa: E731
    like = jax.tree.map(
        lambda spec, x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec)),
        specs,
        values,
        is_leaf=is_spec,
    )
    for save, load, joint in [
        (hm.save_safetensors, hm.load_safetensors, "."),
        (hm.save_zarr, hm.load_zarr, "/"),
    ]:
        place = str(tmp_path / f"{load.__name__}.safetensors")
        save(place, tree)
        flat = load(place, mesh, specs)
        assert sorted(flat) == sorted(
            ["bias", f"layers{joint}0{joint}w", f"layers{joint}1{joint}w"]
        )
        assert flat[f"layers{joint}1{joint}w"].sharding.spec == P(None, "x")
        for again in (load(place, None, None, like=like), load(place, mesh, specs, like=tree)):
            jax.tree.map(check, again, values)


@pytest.mark.multiprocess
def test_what_to_do_follows_from_what_is_wrong_with_specs(tmp_path: Path) -> None:
    mesh = MESH.mesh()
    file = write(tmp_path, {"a": np.zeros((8, 4)), "b": np.zeros((6, 3))})
    cut, name = "cut by fewer axes what is not a multiple", "correct the names"
    axes, lack = "correct the axes in specs", "leave tensors out with select="
    for specs, kind, advice in [
        ({"*": P(None, "modle")}, hm.SpecError, [axes]),
        ({"*": P("x")}, hm.ShapeError, [cut]),
        ({"a": P("x"), "bb": P()}, hm.SpecError, [name, lack]),
        ({"a": P("modle"), "b": P("x")}, hm.SpecError, [axes, cut]),
    ]:
        with pytest.raises(kind) as caught:
            hm.load_safetensors(file, mesh, specs)
        told = str(caught.value).partition("do:")[2]
        assert [words for words in (name, axes, cut, lack) if words in told] == advice, told


# --- select, rename, and all of them together


@pytest.mark.multiprocess
def test_select_by_function_by_list_and_by_pattern(tmp_path: Path) -> None:
    mesh = MESH.mesh()
    tensors = {f"layer.{i}.{part}": np.full((8,), i, np.float32) for i in range(3) for part in "wb"}
    file = write(tmp_path, tensors)
    for select, expected in [
        (lambda name: name.endswith("2.w"), ["layer.2.w"]),
        (["layer.1.b", "*.0.?"], ["layer.0.b", "layer.0.w", "layer.1.b"]),
        ("*.w", ["layer.0.w", "layer.1.w", "layer.2.w"]),
        (lambda name: False, []),
    ]:
        found = hm.load_safetensors(file, mesh, P("x"), select=select)
        assert sorted(found) == expected
        for name, array in found.items():
            check(array, tensors[name])
    with pytest.raises(hm.SpecError) as caught:
        hm.load_safetensors(
            file,
            mesh,
            P(),
            select=["layer.1.b", "head.*", "tail"],
            rename={"gone": "x"},
            transpose="nothing",
            join={"qkv": hm.Join(["q", "layer.1.b"])},
        )
    for lacking in ("'head.*' (select)", "'tail' (select)", "'gone' (rename)"):
        assert lacking in str(caught.value)
    assert "'nothing' (transpose)" in str(caught.value)
    assert "'q' (join 'qkv')" in str(caught.value)
    with pytest.raises(hm.SpecError, match="twice: 'x'"):
        hm.load_safetensors(file, mesh, P(), select="layer.0.*", rename=lambda name: "x")


def test_of_all_shapes_that_do_not_fit_one_error_tells(tmp_path: Path) -> None:
    mesh = jax.sharding.Mesh(jax.devices()[:1], "x")
    tensors = {"a": np.zeros((8, 4)), "b": np.zeros((8, 6)), "c": np.zeros((8, 4), np.float32)}
    file = write(tmp_path, tensors)
    join = {"ab": hm.Join(["a", "b"]), "ac": hm.Join(["a", "c"]), "s": hm.Join(["a", "b"], 0, True)}
    with pytest.raises(hm.ShapeError) as caught:
        hm.load_safetensors(file, mesh, P(), join=join, transpose={"c": (0, 0)})
    for words in ("'ab' of 'a'", "'ac' of", "they do not stack on axis 0", "no transpose by axes"):
        assert words in str(caught.value)
    with pytest.raises(hm.SpecError, match="without a spec: 'b'"):
        hm.load_safetensors(file, mesh, {"a": P(), "c": P()})
    with pytest.raises(hm.SpecError, match="not stored, but in specs: 'z'"):
        hm.load_safetensors(file, mesh, {"*": P(), "z": P()})
    with pytest.raises(hm.SpecError, match="replicas='twice'"):
        hm.load_safetensors(file, mesh, P(), replicas="twice")  # type: ignore[arg-type]
    with pytest.raises(hm.SpecError, match="dtype='float7'"):
        hm.load_safetensors(file, mesh, P(), dtype="float7")


BASE = (16, 8, 24)
STORED = [np.float32, ml_dtypes.bfloat16, np.int8]


def stored() -> dict[str, np.ndarray]:
    """`kind.axis.n` is longer by `n` along an axis: what may be joined along it."""
    made: dict[str, np.ndarray] = {}
    for kind in range(len(STORED)):
        for axis in range(3):
            for n in range(4):
                shape = [size + 8 * n * (i == axis) for i, size in enumerate(BASE)]
                made[f"{kind}.{axis}.{n}"] = oracle.noise(tuple(shape), STORED[kind], len(made))
    return made


def specs_for(kind: meshes.Kind, spec: meshes.Spec, shape: tuple[int, ...]) -> P:
    """The spec, or none where it does not cut the shape evenly."""
    sizes = dict(kind.axes)
    for size, axes in zip(shape, spec, strict=False):
        names = () if axes is None else (axes,) if isinstance(axes, str) else axes
        if size % np.prod([sizes[name] for name in names], dtype=int):
            return P()
    return P(*spec)


@pytest.mark.multiprocess
def test_200_cases_of_all_options_on_every_mesh(tmp_path: Path) -> None:
    tensors = stored()
    file = write(tmp_path, tensors)
    draw = random.Random(3)
    seen: set[Any] = set()
    for number in range(200):
        name = draw.choice(list(meshes.KINDS))
        kind, spec = meshes.KINDS[name], draw.choice(meshes.specs(meshes.KINDS[name]))
        group = draw.choice([f"{k}.{axis}" for k in range(len(STORED)) for axis in range(3)])
        way = draw.choice(["plain", "join", "join", "stack"])
        if way == "stack":  # of one shape
            names = [f"{group[0]}.{axis}.0" for axis in draw.sample(range(3), draw.choice([2, 3]))]
        else:
            names = [f"{group}.{n}" for n in sorted(draw.sample(range(4), draw.choice([1, 2, 3])))]
        turn = draw.choice([None, (0, 2, 1), (2, 0, 1), (2, 1, 0), (1, 0, 2)])
        values = {x: tensors[x] if turn is None else tensors[x].transpose(turn) for x in names}
        renames: Any = draw.choice([None, {x: f"u.{x}" for x in names}, lambda x: f"u.{x}"])
        before = "" if renames is None else "u."
        values = {before + x: value for x, value in values.items()}
        turns: dict[str, Any] = {} if turn is None else dict.fromkeys(values, turn)
        if draw.random() < 0.5 and turns:
            turns = {f"{before}[012].*": turn}
        joins: dict[str, hm.Join] | None = None
        if way != "plain":
            axis = int(group[2]) if turn is None else turn.index(int(group[2]))
            axis = draw.choice([0, 1, 3, -1]) if way == "stack" else axis
            axis = axis - 3 if way == "join" and draw.random() < 0.3 else axis
            order = list(values)
            joins = {"all": hm.Join(order, axis, way == "stack")}
            put = np.stack if way == "stack" else np.concatenate
            values = {"all": put([values[x] for x in order], axis)}
            if draw.random() < 0.3:
                turns["all"], values["all"] = None, values["all"].T
        dtype = draw.choice([None, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
        with np.errstate(all="ignore"):
            values = {x: v if dtype is None else v.astype(dtype) for x, v in values.items()}
        arrays = hm.load_safetensors(
            file,
            kind.mesh(),
            {x: specs_for(kind, spec, v.shape) for x, v in values.items()}
            if draw.random() < 0.5
            else lambda x, shape, _, kind=kind, spec=spec: specs_for(kind, spec, shape),
            select=draw.choice([names, lambda x, names=names: x in names]),
            rename=renames,
            transpose=turns or None,
            join=joins,
            dtype=dtype if draw.random() < 0.5 else {"*": dtype},
            replicas=draw.choice(["auto", "once", "read"]),
            threads=draw.choice([None, 1, 3]),
        )
        assert sorted(arrays) == sorted(values)
        for x, value in values.items():
            check(arrays[x], value, (number, name, spec, way, x))
        seen |= {name, way, dtype, turn, group[0]}
    assert set(meshes.KINDS) < seen


# --- what is said


@pytest.mark.multiprocess
def test_progress_is_told_to_a_function_everywhere_and_shown_by_process_0(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mesh = MESH.mesh()
    value = np.zeros((2048, 1024), np.float32)  # 8 MiB each, two or three to a group
    file = write(tmp_path, {f"w{i}": value for i in range(6)})
    told: list[tuple[int, int]] = []
    hm.load_safetensors(file, mesh, P(), progress=lambda done, total: told.append((done, total)))
    assert len(told) == 3
    assert [done for done, _ in told] == [16 * 2**20 * (i + 1) for i in range(3)]
    assert {total for _, total in told} == {48 * 2**20}
    assert capfd.readouterr().err == ""
    hm.load_safetensors(file, mesh, P(), progress=True)
    lines = capfd.readouterr().err.splitlines()
    if jax.process_index() == 0:
        shown = r"hostmesh: load_safetensors: (\d+) of 48 MiB on process 0, \d+ MiB/s"
        assert all(re.fullmatch(shown, line) for line in lines), lines
        assert " 16 of 48" in lines[0]
        assert " 48 of 48" in lines[-1]
    else:
        assert lines == []
    with hm.config.set(progress=True):
        hm.load_safetensors(file, mesh, P(), progress=False)
    assert capfd.readouterr().err == ""


@pytest.mark.multiprocess
def test_a_layout_of_tiny_pieces_is_warned_of_with_its_ratio(tmp_path: Path) -> None:
    mesh = MESH.mesh()
    value = np.zeros((4096, 1024), np.float32)  # rows of 4096 bytes, a page, of which each has 1024
    file = write(tmp_path, {"w": value})
    with pytest.warns(UserWarning, match="reads in tiny pieces") as caught:
        plan = hm.load_safetensors(file, mesh, P(None, "x"), explain=True)
    words = str(caught[0].message)
    assert f"gives 4.0 times the {value.nbytes // 4} bytes" in words
    assert caught[0].filename == __file__
    assert plan.over_read == pytest.approx(4.0, rel=1e-3)
    assert "over-read here 4.00x" in str(plan)
    with pytest.warns(UserWarning, match="reads in tiny pieces"):
        check(hm.load_safetensors(file, mesh, P(None, "x"))["w"], value)
    hm.load_safetensors(file, mesh, P("x"))  # which is not


@pytest.mark.multiprocess
def test_files_that_differ_are_an_error_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me, mesh = jax.process_index(), MESH.mesh()
    own = tmp_path / str(me)
    own.mkdir()
    monkeypatch.chdir(own)
    w, b = np.zeros((16, 4), np.float32), np.zeros((8,), np.float32)
    same = {"w": w, "b": b}
    for other in [
        {"w": w},  # a tensor less
        {"w": w, "c": b},  # of another name
        {"w": w.reshape(8, 8), "b": b},  # of another shape
        {"w": w.astype(np.int32), "b": b},  # of another dtype
        {"w": w, "b": b, "a": b},  # in another place
    ]:
        safetensors.numpy.save_file(other if me == 2 else same, "m.safetensors")
        with pytest.raises(hm.DivergenceError) as caught:
            hm.load_safetensors("m.safetensors", mesh, P(), select=None)
        assert "process 2" in str(caught.value)
        assert "digest" in str(caught.value)
    hm.barrier("all were told")


# --- zarr


@pytest.mark.multiprocess
def test_a_zarr_store_says_how_far_it_is(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hostmesh import _progress

    monkeypatch.setattr(_progress, "_INTERVAL", 0.0)
    array = hm.to_global(np.zeros((512, 1024), np.float32), MESH.mesh(), P("x"))
    hm.save_zarr(tmp_path / "x.zarr", array, progress=True)
    lines = capfd.readouterr().err.splitlines()
    if jax.process_index() == 0:
        assert lines[-1] == "hostmesh: processes 0-3 save x.zarr: 2 MiB, done"
        assert len(lines) > 1
    else:
        assert lines == []
    hm.save_zarr(tmp_path / "x.zarr", array)
    assert capfd.readouterr().err == ""
    hm.barrier("saved")


def test_without_the_zarr_package_both_ways_say_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = builtins.__import__

    def lacking(name: str, *args: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "zarr":
            raise ModuleNotFoundError("No module named 'zarr'", name="zarr")
        return original(name, *args, **options)

    for name in [name for name in sys.modules if name.partition(".")[0] == "zarr"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", lacking)
    for call in (
        lambda: hm.load_zarr(tmp_path / "x.zarr", None, P()),
        lambda: hm.save_zarr(tmp_path / "x.zarr", np.ones(3)),
    ):
        with pytest.raises(hm.SpecError, match=r"pip install 'hostmesh\[zarr\]'"):
            call()
    assert list(tmp_path.iterdir()) == []
