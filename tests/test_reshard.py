"""`reshard` and `fetch_missing`: every shard and every host-local value against the oracle."""

from __future__ import annotations

import random
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hostmesh as hm
import meshes
import oracle
from apis import both
from test_check import given_of, peak_above

SHAPE = (16, 8, 24)  # what every spec below cuts evenly


class Target:
    """A mesh with a spec, and what the oracle knows of it."""

    def __init__(self, mesh: Mesh, spec: meshes.Spec) -> None:
        owners = np.vectorize(lambda device: device.process_index)(mesh.devices)
        axes = tuple(mesh.shape.items())
        self.mesh, self.spec = mesh, P(*spec)
        self.layout = oracle.Layout(axes, owners, oracle.cuts_of(spec, len(SHAPE)))

    def array(self, value: np.ndarray) -> Any:
        """A value in this layout; where this process has no device, what is known of it."""
        array = hm.from_callback(
            value.shape, self.mesh, self.spec, lambda index: value[index], dtype=value.dtype
        )
        if array.addressable_shards or value.dtype == np.int8:
            return array
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)

    def check(self, array: jax.Array, value: np.ndarray) -> None:
        assert array.sharding == NamedSharding(self.mesh, self.spec)
        if array.addressable_shards:
            oracle.assert_shards(array, self.mesh, self.layout, value)
        else:
            assert jax.process_index() not in self.layout.processes


def some_devices(processes: tuple[int, ...], shape: tuple[int, ...], stride: int = 1) -> Mesh:
    devices = [d for d in jax.devices() if d.process_index in processes][::stride]
    return Mesh(np.array(devices).reshape(shape), ("x", "y")[: len(shape)])


def targets() -> tuple[list[Target], list[Target]]:
    """Layouts of all devices, and of some."""
    every = [Target(kind.mesh(), spec) for _, kind, spec, _ in oracle.layouts()]
    pair, last = some_devices((0, 1), (2, 2)), some_devices((2, 3), (4,))
    three, one = some_devices((0, 1, 3), (3,), 2), some_devices((2,), (2,))
    some = [Target(pair, spec) for spec in (("x", "y"), ("y",), (("y", "x"),), (None, "x"))]
    some += [Target(last, spec) for spec in ((None, "x"), (), ("x",))]
    some += [Target(three, spec) for spec in ((None, None, "x"), ())]
    some += [Target(one, spec) for spec in (("x",), ())]
    return every, some


@both
def test_from_any_layout_to_any_other(public: bool) -> None:
    """Of all processes, of some, from some to others, from one to all: every shard, bit for bit."""
    every, some = targets()
    rng = random.Random(0)
    pairs = [(some, some)] * 24 + [(some, every)] * 12 + [(every, some)] * 12 + [(every, every)] * 8
    for seed, (one, other) in enumerate(pairs[::3] if public else pairs):
        old, new = rng.choice(one), rng.choice(other)
        values = [oracle.noise(SHAPE, dtype, seed) for dtype in (np.float32, np.int8)]
        arrays = [old.array(value) for value in values]
        with jax.transfer_guard("disallow"), jax.set_mesh(every[0].mesh):
            got = hm.reshard(arrays, new.mesh, new.spec)
        for array, value in zip(got, values, strict=True):
            new.check(array, value)


@both
def test_every_dtype_keys_and_empty_arrays(public: bool) -> None:
    every, some = targets()
    names = (
        "bool",
        "int16",
        "bfloat16",
        "float16",
        "float8_e5m2",
        "complex64",
        "int4",
        "int64",
        "float64",
        "complex128",
    )
    for old, new in ((every[1], some[0]), (some[2], some[4]), (every[3], every[4])):
        with jax.enable_x64(True):
            values = {name: oracle.noise(SHAPE, name) for name in names}
            arrays = {name: old.array(value) for name, value in values.items()}
        got = hm.reshard(arrays, new.mesh, new.spec)  # without x64
        for name, value in values.items():
            assert got[name].dtype == value.dtype
            new.check(got[name], value)
        empty = np.zeros((16, 0, 24), np.float32)
        new.check(hm.reshard(old.array(empty), new.mesh, new.spec), empty)
    keys, first = jax.random.split(jax.random.key(0), 8), every[0].mesh
    pair = some_devices((0, 1), (4,))
    moved = hm.reshard(hm.replicate(keys, first), pair, P("x"))
    assert moved.dtype == keys.dtype
    assert moved.shape == (8,)
    if jax.process_index() < 2:
        for shard in jax.random.key_data(moved).addressable_shards:
            oracle.assert_bits_equal(shard.data, np.asarray(jax.random.key_data(keys))[shard.index])


@both
def test_trees_specs_and_arrays_that_stay(public: bool) -> None:
    mesh = meshes.KINDS["block"].mesh()
    value = oracle.ids((16, 8)).astype(np.float32)
    one = hm.from_callback(value.shape, mesh, P("x"), lambda index: value[index])
    tree = {"a": one, "b": [one, one]}
    specs = {"a": P("x", None), "b": NamedSharding(mesh, P(None, "y"))}
    got = hm.reshard(tree, mesh, specs)
    assert got["a"].sharding == NamedSharding(mesh, P("x", None))  # the same place in other words
    for array in (got["a"], *got["b"]):
        for shard in array.addressable_shards:
            oracle.assert_bits_equal(shard.data, value[shard.index])
    assert got["b"][0].sharding.spec == P(None, "y")


@both
def test_calls_that_do_not_go_together_are_named(public: bool) -> None:
    me = jax.process_index()
    mesh, few = meshes.KINDS["block"].mesh(), some_devices((0, 1), (2, 2))
    array = hm.replicate(np.zeros((16, 8), np.float32), mesh)
    with pytest.raises(hm.DivergenceError, match=r"processes 0-2: reshard of .*; process 3: res"):
        hm.reshard(array, few, P("x") if me < 3 else P("y"))
    failed = hm.SpecError if me == 1 else hm.ClusterError
    with pytest.raises(failed, match=r"leaf \['w'\] on process 1 \(reshard\)\n.*given: spec.*'y'"):
        hm.reshard({"w": array}, few, P("x") if me != 1 else P(None, None, "y"))
    for leaf, kind, words in (
        (3, hm.ShapeError, "int"),
        (jnp.zeros(3), hm.SpecError, "SingleDeviceSharding"),
        (jax.ShapeDtypeStruct((4,), np.float32), hm.SpecError, "sharding None"),
        (
            jax.ShapeDtypeStruct((4,), np.float32, sharding=NamedSharding(mesh, P())),
            hm.ShapeError,
            "it has devices there",
        ),
    ):
        with pytest.raises(kind, match=words):
            hm.reshard(leaf, mesh, P())
    with pytest.raises(hm.SpecError, match="prefix"):
        hm.reshard([array], mesh, [P(), P()])
    if not public:  # there a channel is out of step when its time has run out
        time.sleep(1.5 if me == 3 else 0)
        with pytest.raises(hm.StragglerError, match=r"process 3 did not come within 0\.5 s"):
            hm.reshard(array, few, P("x"), timeout=0.5)
    hm.barrier("together again")


@both
def test_what_is_missing_is_fetched_in_every_layout(public: bool) -> None:
    me, incomplete = jax.process_index(), 0
    for seed, (kind, mesh_kind, spec, layout) in enumerate(oracle.layouts()):
        missing = any(layout.product(p) != layout.chunks(p) for p in layout.processes)
        if not missing and seed % 5:
            continue
        mesh = mesh_kind.mesh()
        values = [oracle.noise(SHAPE, d, seed) for d in (np.float32, np.int8, jnp.bfloat16)]
        arrays = [
            hm.from_callback(value.shape, mesh, P(*spec), lambda index, v=value: v[index])
            for value in values
        ]
        what = (kind, spec)
        with jax.transfer_guard("disallow"):
            host = hm.to_local(arrays, numpy=True, fetch_missing=True)
            device = hm.to_local(arrays, mesh, P(*spec), fetch_missing=True)
        for value, one, other in zip(values, host, device, strict=True):
            local = layout.local(value, me)
            assert isinstance(one, np.ndarray)
            assert one.flags.writeable
            oracle.assert_bits_equal(one, local, what)
            assert other.is_fully_addressable
            oracle.assert_bits_equal(other, local, what)
            if missing:
                assert len(other.sharding.device_set) == 2  # spread over this process's devices
        incomplete += missing
    assert incomplete == 10


@both
def test_fetching_keys_local_values_and_several_meshes(public: bool) -> None:
    me = jax.process_index()
    diagonal, block = meshes.KINDS["diagonal"], meshes.KINDS["block"].mesh()
    layout = oracle.Layout(diagonal.axes, diagonal.owners, oracle.cuts_of(("x", "y"), 2))
    data = np.asarray(jax.random.key_data(oracle.keys(32))).reshape(4, 8, 2)
    local = layout.local(data, me)
    keys = jax.random.wrap_key_data(hm.to_global(local, diagonal.mesh(), P("x", "y")))
    whole = hm.to_global(np.arange(2.0), block, P("x"))
    here = jnp.arange(3)
    got = hm.to_local({"k": keys, "w": whole, "l": here}, fetch_missing=True)
    oracle.assert_bits_equal(jax.random.key_data(got["k"]), local)
    assert got["l"] is here
    assert got["w"].tolist() == [0, 1]
    assert hm.to_local([here], fetch_missing=True)[0] is here  # nothing to agree on
    with jax.enable_x64(True):
        wide = oracle.noise((4, 8), np.int64)
        array = hm.to_global(layout.local(wide, me), diagonal.mesh(), P("x", "y"))
    oracle.assert_bits_equal(hm.to_local(array, fetch_missing=True), layout.local(wide, me))
    # Another layout than its own: resharded first, then fetched.
    rows = hm.to_global(np.full((4, 8), me, np.float32), block, P("x"))
    value = np.repeat(np.arange(4, dtype=np.float32), 4)[:, None].repeat(8, 1)
    moved = hm.to_local(rows, diagonal.mesh(), P("x", "y"), numpy=True, fetch_missing=True)
    oracle.assert_bits_equal(moved, layout.local(value, me))


@both
def test_fetching_fails_on_all_or_none(public: bool) -> None:
    me = jax.process_index()
    diagonal = meshes.KINDS["diagonal"].mesh()
    array = hm.to_global(np.zeros((4, 8), np.float32), diagonal, P("x", "y"))
    failed = hm.ShapeError if me == 2 else hm.ClusterError
    with pytest.raises(failed, match=r"leaf \['w'\] on process 2 \(to_local\)"):
        hm.to_local({"w": array if me != 2 else 3}, diagonal, P("x", "y"), fetch_missing=True)
    with pytest.raises(hm.DivergenceError, match=r"process 0: to_local\(fetch_missing=True\) of"):
        hm.to_local([array] if me else [array] * 2, fetch_missing=True)
    with pytest.raises(hm.ShapeError, match="pass fetch_missing=True on all processes"):
        hm.to_local(array)
    with pytest.raises(hm.SpecError, match="nothing is fetched"):
        jax.jit(lambda x: hm.to_local(x, diagonal, P("x", "y"), fetch_missing=True))(array)
    hm.barrier("together again")


@pytest.mark.multiprocess(timeout=90)
def test_pieces_take_memory_of_the_order_of_the_shards() -> None:
    pair, last = some_devices((0, 1), (4,)), some_devices((2, 3), (4,))
    size = 2**25  # 128 MiB, of which 64 MiB on each process of two
    old = NamedSharding(pair, P("x"))
    data = np.ones(size // 4, np.float32)
    array = hm.from_callback((size,), None, old, lambda _: data, dtype=np.float32)
    small = hm.from_callback((2**22,), None, old, lambda _: data[: 2**20], dtype=np.float32)
    jax.block_until_ready(hm.reshard(small, last, P("x")))
    results: list[Any] = []
    peak = peak_above(
        lambda: results.append(jax.block_until_ready(hm.reshard(array, last, P("x"))))
    )
    held = sum(shard.data.nbytes for shard in results[0].addressable_shards)
    assert held == (64 * 2**20 if jax.process_index() >= 2 else 0)
    assert peak < held + 64 * 2**20


def test_alone_everything_stays_here() -> None:
    mesh = Mesh(jax.devices()[:1], "x")
    array = hm.replicate(np.arange(4), mesh)
    moved = hm.reshard({"a": array}, mesh, P("x"))["a"]
    assert moved.sharding == NamedSharding(mesh, P("x"))
    assert moved.tolist() == [0, 1, 2, 3]
    assert hm.to_local(moved, numpy=True, fetch_missing=True).tolist() == [0, 1, 2, 3]


def test_a_traced_value_is_refused() -> None:
    mesh = Mesh(jax.devices()[:1], "x")
    with pytest.raises(hm.ShapeError, match="a traced value"):
        jax.jit(lambda x: hm.reshard(x, mesh, P()))(np.ones(3))


def test_given_of_reads_the_second_line() -> None:
    error = hm.SpecError("here on process 0\n  given: 1\n  rule:  2\n  do:    3")

    def fail() -> None:
        raise error

    assert given_of(fail, hm.SpecError) == "1"
