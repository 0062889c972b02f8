"""Every kind of leaf that goes in, against the brute-force oracle."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import hostmesh as hm
import meshes
import oracle
from apis import both

SHAPE = (16, 8, 8)  # what every spec of every kind of mesh cuts evenly


def memory_layouts(local: np.ndarray, directory: Path) -> dict[str, np.ndarray]:
    """The same values in every form that NumPy has for them."""
    n, m = local.shape
    wide = np.zeros((2 * n, 3 * m), local.dtype)
    wide[::2, 1::3] = local
    read_only = local.copy()
    read_only.flags.writeable = False
    offset = np.zeros(local.nbytes + 1, np.uint8)[1:].view(np.uint8)
    odd = np.ndarray(local.shape, local.dtype, buffer=offset)  # not even aligned for its dtype
    odd[...] = local
    file = directory / f"{jax.process_index()}.npy"
    np.save(file, local)
    return {
        "C": np.ascontiguousarray(local),
        "Fortran": np.asfortranarray(local),
        "strided": wide[::2, 1::3],
        "negative strides": np.ascontiguousarray(local[::-1, ::-1])[::-1, ::-1],
        "transposed": np.ascontiguousarray(local.T).T,
        "read-only": read_only,
        "unaligned": odd,
        "other byte order": local.astype(local.dtype.newbyteorder(">")),
        "memory map": np.load(file, mmap_mode="r"),
        "subclass": local.view(np.memmap),
    }


@both
def test_arrays_of_any_memory_layout(public: bool, tmp_path: Path) -> None:
    me = jax.process_index()
    for scale in (1, 16):  # small shards, and shards over the size of pooled buffers
        value = oracle.noise((32 * scale, 16 * scale), np.float32, scale)
        for name in ("block", "permuted"):
            kind = meshes.KINDS[name]
            mesh = kind.mesh()
            for spec in (("x", "y"), ("y", "x"), (None, "x"), ()):
                layout = oracle.Layout(kind.axes, kind.owners, oracle.cuts_of(spec, 2))
                forms = memory_layouts(layout.local(value, me), tmp_path)
                for form, local in forms.items():
                    array = hm.to_global(local, mesh, P(*spec))
                    oracle.assert_shards(array, mesh, layout, value)
                    if form != "memory map" or scale == 1:
                        given_up = hm.to_global(local.copy(), mesh, P(*spec), may_alias=True)
                        oracle.assert_shards(given_up, mesh, layout, value)


@both
def test_a_memory_map_is_read_only_where_this_process_s_chunks_lie(
    public: bool, tmp_path: Path
) -> None:
    """Given whole, a file of 16 MiB costs memory for this process's quarter only."""
    shape = (64, 256, 256)  # float32: 256 KiB a row
    file = tmp_path / f"whole-{jax.process_index()}.bin"
    with file.open("wb") as out:
        for row in range(shape[0]):
            out.write(np.full(shape[1:], row, np.float32).tobytes())
    kind = meshes.KINDS["strided"]
    mesh = kind.mesh()
    layout = oracle.Layout(kind.axes, kind.owners, (("x", "y"), (), ()))
    data = np.memmap(file, np.float32, "r", shape=shape)
    before = _resident(file)
    array = hm.to_global(data, mesh, P(("x", "y")), global_shape=shape)
    jax.block_until_ready(array)
    touched = _resident(file) - before
    mine = shape[0] // 4
    # A fault maps up to 16 pages around it: each of the two chunks may have such a fringe.
    assert mine * 2**18 <= touched <= mine * 2**18 + 4 * 64 * 1024
    rows = np.broadcast_to(np.arange(64, dtype=np.float32)[:, None, None], shape)
    oracle.assert_shards(array, mesh, layout, rows)


def _resident(file: Path) -> int:
    """Bytes of a file that are mapped in this process's memory."""
    inside, resident = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            inside = line.endswith(file.name)
        elif inside and line.startswith("Rss:"):
            resident += int(line.split()[1]) * 1024
    return resident


@both
def test_scalars_lists_and_empty_arrays(public: bool) -> None:
    mesh = meshes.KINDS["block"].mesh()
    for leaf in (3, 2.5, True, 1 + 2j, np.float16(4), np.array(5), np.int8(-7)):
        array = hm.to_global(leaf, mesh, P())
        assert array.shape == ()
        assert array.dtype == jax.eval_shape(jnp.asarray, leaf).dtype
        for shard in array.addressable_shards:
            assert jax.device_get(shard.data) == leaf
        assert hm.to_local(array, numpy=True) == leaf
        assert hm.to_numpy(array) == leaf
    for rows in ([1, 2, 3, 4], [[1.5, 2], [3, 4]], [[True], [False]]):
        array = hm.to_global(rows, mesh, P("x"))
        assert array.dtype == jax.eval_shape(lambda: jnp.asarray(rows)).dtype  # noqa: B023
        assert array.shape[0] == 4 * len(rows)
        assert np.array_equal(hm.to_local(array, numpy=True), rows)
    for shape in ((0,), (0, 3), (4, 0)):
        array = hm.to_global(np.zeros(shape, np.float32), mesh, P("y"))
        assert array.size == 0
        assert hm.to_local(array, numpy=True).shape == shape
    # One spec for a list: a list of numbers is one leaf. A list of specs: each number is one.
    one, two = hm.to_global([1, 2], mesh, [P(), P()])
    assert (one.shape, two.shape) == ((), ())
    both_numbers = hm.to_global([1, 2], mesh, P())
    assert both_numbers.shape == (2,)


@both
def test_trees_and_prefixes(public: bool) -> None:
    me = jax.process_index()
    kind = meshes.KINDS["block"]
    mesh = kind.mesh()
    x, y = np.full((2, 4), me, np.float32), np.arange(4, dtype=np.int32)
    tree = {"a": (x, None), "b": [x, {"c": y}], "n": 3.0, "none": None}
    specs = {"a": P("x"), "b": [P("x", "y"), P()], "n": P(), "none": P()}
    made = hm.to_global(tree, mesh, specs)
    assert jax.tree.structure(made) == jax.tree.structure(tree)
    assert made["a"][0].shape == (8, 4)
    assert made["b"][0].shape == (8, 4)
    assert made["b"][0].sharding.spec == P("x", "y")
    assert made["b"][1]["c"].shape == (4,)
    assert hm.to_global(None, mesh, P()) is None
    assert hm.to_global({}, mesh, P()) == {}
    back = hm.to_local(made, numpy=True)
    jax.tree.map(oracle.assert_bits_equal, back["a"], tree["a"])
    jax.tree.map(oracle.assert_bits_equal, back["b"], tree["b"])
    # A NamedSharding is a spec that brings its mesh.
    other = NamedSharding(meshes.KINDS["permuted"].mesh(), P())
    made = hm.to_global({"a": x, "b": y}, mesh, {"a": P("x"), "b": other})
    assert made["b"].sharding == other
    assert hm.to_global(y, None, other).sharding == other


@both
def test_the_mesh_in_context(public: bool) -> None:
    mesh = meshes.KINDS["flat"].mesh()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # JAX's own, of such blocks
        with mesh:
            made = hm.to_global(np.arange(4), None, P("x"))
    assert made.sharding == NamedSharding(mesh, P("x"))
    with jax.set_mesh(mesh):
        assert hm.to_global(np.arange(4), None, P("x")).sharding == NamedSharding(mesh, P("x"))


@both
def test_arrays_that_are_on_devices_already(public: bool) -> None:
    """On one device, on all of this process's, cut as wanted or otherwise; and global ones."""
    me = jax.process_index()
    mine = jax.local_devices()
    pair = jax.sharding.Mesh(np.array(mine), ("i",))
    value = oracle.noise(SHAPE, np.float32)
    for _, kind, spec, layout in list(oracle.layouts())[public::2]:
        mesh = kind.mesh()
        local = layout.local(value, me)
        places: list[Any] = [*mine, NamedSharding(pair, P())]
        places += [
            NamedSharding(pair, P(*(None,) * i, "i")) for i in range(3) if local.shape[i] % 2 == 0
        ]
        for place in places:
            array = hm.to_global(jax.device_put(local, place), mesh, P(*spec))
            oracle.assert_shards(array, mesh, layout, value)
        assert hm.to_global(array, mesh, P(*spec)) is array
        if layout.is_full_product(me):  # what comes out goes in again
            again = hm.to_global(hm.to_local(array), mesh, P(*spec))
            oracle.assert_shards(again, mesh, layout, value)


@both
def test_prng_keys(public: bool) -> None:
    me = jax.process_index()
    for impl in ("threefry2x32", "rbg"):
        for _, kind, spec, layout in list(oracle.layouts())[impl == "rbg" :: 2]:
            mesh = kind.mesh()
            bits = oracle.noise((*SHAPE, {"threefry2x32": 2, "rbg": 4}[impl]), np.uint32)
            wider = oracle.Layout(layout.axes, layout.owners, (*layout.cuts, ()))
            keys = jax.random.wrap_key_data(jax.device_put(wider.local(bits, me)), impl=impl)
            array = hm.to_global(keys, mesh, P(*spec))
            assert array.shape == SHAPE
            assert array.dtype == keys.dtype
            assert array.sharding.is_equivalent_to(NamedSharding(mesh, P(*spec)), 3)
            oracle.assert_shards(jax.random.key_data(array), mesh, wider, bits)
            if layout.is_full_product(me):
                back = hm.to_local(array)
                assert back.dtype == keys.dtype
                oracle.assert_bits_equal(jax.random.key_data(back), wider.local(bits, me))
    (key,) = oracle.keys(1)
    one = hm.to_global(key, mesh, P())
    assert one.shape == ()
    for shard in one.addressable_shards:
        oracle.assert_bits_equal(
            jax.random.key_data(shard.data), jax.device_get(jax.random.key_data(key))
        )


@both
def test_processes_without_devices_and_meshes_of_part_of_the_cluster(public: bool) -> None:
    me = jax.process_index()
    for numbers in ([[0, 1], [6, 7]], [[4, 1], [6, 0]], [[5, 2]]):
        kind = meshes.Kind(("x", "y"), np.array(numbers))
        mesh = kind.mesh()
        for spec in ((), ("x",), ("y", "x"), (None, ("x", "y"))):
            layout = oracle.Layout(kind.axes, kind.owners, oracle.cuts_of(spec, 2))
            for dtype in (np.float32, np.int64, jnp.bfloat16):
                value = oracle.ids((8, 8)).astype(dtype)
                on_device = jax.dtypes.canonicalize_dtype(dtype)
                if me in layout.processes:
                    leaf: Any = layout.local(value, me)
                else:
                    leaf = jax.ShapeDtypeStruct(value.shape, dtype)
                array = hm.to_global({"v": leaf}, mesh, P(*spec))["v"]
                assert array.dtype == on_device
                assert array.sharding == NamedSharding(mesh, P(*spec))
                oracle.assert_shards(array, mesh, layout, value.astype(on_device))
                back = hm.to_local(array, numpy=True)
                if me not in layout.processes:
                    assert back == jax.ShapeDtypeStruct(value.shape, on_device)
                elif layout.is_full_product(me):
                    oracle.assert_bits_equal(back, leaf.astype(on_device))
        keys: Any = oracle.keys(8)
        if me not in layout.processes:
            keys = jax.ShapeDtypeStruct(keys.shape, keys.dtype)
        array = hm.to_global(keys, mesh, P())
        assert array.shape == (8,)
        assert array.dtype == keys.dtype
