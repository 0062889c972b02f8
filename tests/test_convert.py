"""Host-local values to global arrays and back, every shard against the brute-force oracle."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import hostmesh as hm
import meshes
import oracle

SHAPE = (16, 8, 8)  # what every spec of every kind of mesh cuts evenly

DTYPES = (np.float32, np.int8, np.bool_, jnp.bfloat16, np.complex64)
WIDE = ("int64", "uint64", "float64", "complex128")
SUB_BYTE = ("int1", "int2", "int4", "uint1", "uint2", "uint4", "float4_e2m1fn")
ALL_DTYPES = (
    *("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32"),
    *("float16", "bfloat16", "float32", "complex64"),
    *(name for name in dir(jnp) if name.startswith("float8_")),
    *(name for name in SUB_BYTE if hasattr(jnp, name)),
    *WIDE,
)

# Each test runs with JAX's private names and with their public fallbacks.
both = pytest.mark.parametrize(
    "public",
    [
        pytest.param(False, marks=pytest.mark.multiprocess, id="private"),
        pytest.param(
            True, marks=pytest.mark.multiprocess(env={"HOSTMESH_PUBLIC_API": "1"}), id="public"
        ),
    ],
)


@pytest.fixture(autouse=True)
def _api(request: pytest.FixtureRequest) -> None:
    from hostmesh import _jax

    if "public" in request.fixturenames:
        assert request.getfixturevalue("public") == _jax.PUBLIC_API


def product(layout: oracle.Layout) -> bool:
    """Whether this process's devices hold all of its host-local value."""
    me = jax.process_index()
    return layout.product(me) == layout.chunks(me)


@both
def test_every_shard_of_every_layout_and_dtype(public: bool) -> None:
    """7 kinds of mesh x 8 specs x 5 dtypes, and back again bit for bit."""
    me, products = jax.process_index(), 0
    for seed, (kind, mesh_kind, spec, layout) in enumerate(oracle.layouts()):
        mesh = mesh_kind.mesh()
        sharding = NamedSharding(mesh, P(*spec))
        for dtype in DTYPES:
            value = oracle.noise(SHAPE, dtype, seed)
            local = layout.local(value, me)
            array = hm.to_global(local, mesh, P(*spec))
            what = (kind, spec, dtype)
            assert array.sharding == sharding, what
            assert array.dtype == dtype, what
            oracle.assert_shards(array, mesh, layout, value)
            if not product(layout):
                for as_numpy in (False, True):
                    with pytest.raises(hm.ShapeError, match="on no device of process"):
                        hm.to_local(array, numpy=as_numpy)
                continue
            products += 1
            back = hm.to_local(array)
            assert isinstance(back, jax.Array)
            assert back.is_fully_addressable
            oracle.assert_bits_equal(back, local, what)
            oracle.assert_bits_equal(hm.to_local(array, mesh, P(*spec), numpy=True), local, what)
    assert products > 7 * 8 * 5 // 2


@both
def test_every_dtype_of_jax_comes_back_bit_for_bit(public: bool) -> None:
    me = jax.process_index()
    with jax.enable_x64(True):
        for seed, (kind, mesh_kind, spec, layout) in enumerate(oracle.layouts()):
            if not product(layout):
                continue
            mesh = mesh_kind.mesh()
            for dtype in ALL_DTYPES[seed % 2 :: 2]:
                local = layout.local(oracle.noise(SHAPE, dtype, seed), me)
                array = hm.to_global(local, mesh, P(*spec))
                what = (kind, spec, dtype)
                oracle.assert_bits_equal(hm.to_local(array), local, what)
                oracle.assert_bits_equal(hm.to_local(array, numpy=True), local, what)


@both
def test_shards_over_the_size_where_buffers_are_pooled(public: bool) -> None:
    """The same with shards of 128 KiB and more, which take another way into the device."""
    me = jax.process_index()
    shape = (128, 128, 128)
    for name in ("block", "permuted", "diagonal", "strided"):
        kind = meshes.KINDS[name]
        mesh = kind.mesh()
        for spec in meshes.specs(kind)[1::2]:
            layout = oracle.Layout(kind.axes, kind.owners, oracle.cuts_of(spec, 3))
            for dtype in (np.int8, np.dtype(">i2")):
                value = oracle.noise(shape, dtype)
                local = layout.local(value, me)
                array = hm.to_global(local, mesh, P(*spec))
                oracle.assert_shards(array, mesh, layout, value)
                if product(layout):
                    oracle.assert_bits_equal(hm.to_local(array, numpy=True), local)


@both
def test_nan_payloads_and_negative_zeros(public: bool) -> None:
    mesh = meshes.KINDS["interleaved"].mesh()
    for dtype, pattern in (
        (np.float32, np.array([0x7FC12345, 0xFFC00001, 0x7FA00001, 0x80000000], np.uint32)),
        (np.float16, np.array([0x7E01, 0xFE77, 0x7D01, 0x8000], np.uint16)),
        (jnp.bfloat16, np.array([0x7FC1, 0xFFC7, 0x7FA1, 0x8000], np.uint16)),
    ):
        local = np.tile(pattern.view(dtype), 8) if dtype != jnp.bfloat16 else None
        if local is None:
            local = np.tile(pattern, 8).view(dtype)
        array = hm.to_global(local, mesh, P(("x", "y")))
        oracle.assert_bits_equal(hm.to_local(array), local, dtype)
        oracle.assert_bits_equal(hm.to_local(array, numpy=True), local, dtype)


@both
def test_dimensions_given_whole(public: bool) -> None:
    """With the global shape, any dimension may be given whole: this process's part is cut out."""
    me = jax.process_index()
    value = oracle.noise(SHAPE, np.int16)
    for _, kind, spec, layout in oracle.layouts():
        mesh = kind.mesh()
        for whole in ({0, 1, 2}, {0}, {1, 2}, set()):
            local = layout.local(value, me, whole)
            array = hm.to_global(local, mesh, P(*spec), global_shape=SHAPE)
            oracle.assert_shards(array, mesh, layout, value)
        data = jax.device_put(layout.local(value, me, {0, 1}))
        array = hm.to_global(data, mesh, P(*spec), global_shape=SHAPE)
        oracle.assert_shards(array, mesh, layout, value)


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
    for scale in (1, 64):  # small shards, and shards over the size of pooled buffers
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
        if product(layout):  # what comes out goes in again
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
            if product(layout):
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
                elif product(layout):
                    oracle.assert_bits_equal(back, leaf.astype(on_device))
        keys: Any = oracle.keys(8)
        if me not in layout.processes:
            keys = jax.ShapeDtypeStruct(keys.shape, keys.dtype)
        array = hm.to_global(keys, mesh, P())
        assert array.shape == (8,)
        assert array.dtype == keys.dtype


@both
def test_64_bit_values(public: bool) -> None:
    """Without x64 they are made 32 bits wide, as JAX does, but not past what 32 bits hold."""
    mesh = meshes.KINDS["flat"].mesh()
    edge = np.array([-(2**31), 2**31 - 1])
    array = hm.to_global(edge, mesh, P())
    assert array.dtype == np.int32
    oracle.assert_bits_equal(hm.to_local(array, numpy=True), edge.astype(np.int32))
    third = np.array([1 / 3, np.nan, np.inf, -0.0])
    oracle.assert_bits_equal(hm.to_numpy(hm.to_global(third, mesh, P())), third.astype(np.float32))
    with hm.config.set(canonicalize="jax"):
        wrapped = hm.to_global(np.array([2**31]), mesh, P())
        assert hm.to_numpy(wrapped).tolist() == [-(2**31)]
    with jax.enable_x64(True):
        for value in (edge * 2**20, third, np.array([2**64 - 1], np.uint64)):
            oracle.assert_bits_equal(hm.to_numpy(hm.to_global(value, mesh, P())), value)


def _read(value: np.ndarray, asked: list[Any], index: Any) -> np.ndarray:
    asked.append(tuple((part.start, part.stop) for part in index))
    return value[index]


@both
def test_from_callback_reads_each_distinct_chunk_once(public: bool) -> None:
    me = jax.process_index()
    value = oracle.noise(SHAPE, np.float32)
    for _, kind, spec, layout in oracle.layouts():
        mesh = kind.mesh()
        for threads in (None, 1):
            asked: list[Any] = []  # list.append is atomic: threads call read
            read = functools.partial(_read, value, asked)
            array = hm.from_callback(SHAPE, mesh, P(*spec), read, threads=threads)
            assert array.dtype == np.float32
            assert array.sharding == NamedSharding(mesh, P(*spec))
            oracle.assert_shards(array, mesh, layout, value)
            assert len(asked) == len(set(asked)) == len(layout.chunks(me))


@both
def test_from_callback_dtypes_scalars_and_processes_without_devices(public: bool) -> None:
    me = jax.process_index()
    mesh = meshes.KINDS["permuted"].mesh()
    array = hm.from_callback((), mesh, P(), lambda index: np.int8(7), dtype=np.int8)
    assert array.dtype == np.int8
    assert hm.to_numpy(array) == 7
    array = hm.from_callback((8,), mesh, P("x"), lambda i: np.arange(8, dtype=np.int32)[i])
    assert array.dtype == np.int32
    part = meshes.Kind(("x", "y"), np.array([[0, 1]])).mesh()
    asked: list[Any] = []
    read = functools.partial(_read, np.arange(8, dtype=np.float32), asked)
    array = hm.from_callback((8,), part, P("x"), read, dtype=np.float32)
    assert array.shape == (8,)
    assert len(asked) == (1 if me == 0 else 0)


@both
def test_to_numpy_where_this_process_holds_all(public: bool) -> None:
    me = jax.process_index()
    value = oracle.noise(SHAPE, jnp.bfloat16)
    complete = 0
    for _, kind, spec, layout in oracle.layouts():
        array = hm.to_global(layout.local(value, me), kind.mesh(), P(*spec))
        covered = bool(layout.covered(SHAPE, me).all())
        assert hm.is_locally_complete(array) == covered
        if covered:
            complete += 1
            got = hm.to_numpy(array)
            oracle.assert_bits_equal(got, value)
            assert got.flags.owndata or got.base.flags.owndata
            got[...] = 0  # the caller's own
            out = np.empty_like(value)
            assert hm.to_numpy(array, out=out) is out
            oracle.assert_bits_equal(out, value)
        else:
            with pytest.raises(hm.ShapeError, match="allgather"):
                hm.to_numpy(array)
    assert complete >= 7
    oracle.assert_bits_equal(hm.to_numpy(jax.device_put(value)), value)


@both
def test_from_shards(public: bool) -> None:
    value = oracle.noise(SHAPE, np.float32)
    for _, kind, spec, layout in oracle.layouts():
        mesh = kind.mesh()
        place = {device: at for at, device in np.ndenumerate(mesh.devices)}
        pieces = [
            jax.device_put(layout.piece(value, place[device]), device)
            for device in reversed(jax.local_devices())
        ]
        sharding = NamedSharding(mesh, P(*spec))
        array = hm.from_shards(SHAPE, sharding, pieces)
        assert array.sharding == sharding
        oracle.assert_shards(array, mesh, layout, value)


@both
def test_what_to_local_gives_is_the_callers(public: bool) -> None:
    """NumPy results may be written, and what is written does not reach the array."""
    mesh = meshes.KINDS["block"].mesh()
    local = np.arange(8, dtype=np.float32)
    for spec in (P("x"), P()):
        array = hm.to_global(local, mesh, spec)
        back = hm.to_local(array, numpy=True)
        back[...] = -1
        oracle.assert_bits_equal(hm.to_local(array, numpy=True), local)
