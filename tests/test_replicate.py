"""`replicate`: every shard on every device, from equal values or from one process's."""

from __future__ import annotations

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

EVERY = ("bool", "int8", "uint16", "int32", "uint32", "float16", "bfloat16", "float32", "complex64")
EVERY += ("float8_e4m3fn", "int4", "int64", "uint64", "float64", "complex128")


def meshes_of(processes: tuple[int, ...]) -> Mesh:
    """A mesh of all devices of some processes."""
    devices = [d for d in jax.devices() if d.process_index in processes]
    return Mesh(np.array(devices).reshape(-1, 2), ("x", "y"))


def assert_everywhere(array: jax.Array, mesh: Mesh, value: np.ndarray) -> None:
    assert array.sharding == NamedSharding(mesh, P())
    local = [d for d in mesh.devices.flat if d.process_index == jax.process_index()]
    assert {shard.device for shard in array.addressable_shards} == set(local)
    for shard in array.addressable_shards:
        oracle.assert_bits_equal(shard.data, value)


@both
def test_every_dtype_bit_for_bit_on_every_device(public: bool) -> None:
    """From equal values, and from one process's that others know the structure of, or nothing."""
    me = jax.process_index()
    for kind in ("block", "permuted", "flat"):
        mesh = meshes.KINDS[kind].mesh()
        with jax.enable_x64(True):
            # A small one, one of a whole number of parts, and one that is pooled and padded.
            values = {d: oracle.noise((3, 5), d, i) for i, d in enumerate(EVERY)}
            values |= {f"large {d}": oracle.noise((333, 77), d) for d in ("float32", "int8")}
            values |= {"empty": np.zeros((0, 3), np.float32), "scalar": np.float32(-0.0)}
            for source in (None, 0, 2):
                tree: Any = {"values": values, "list": [np.int32(7), jnp.arange(3)]}
                if source is not None and me != source:
                    tree = None if me % 2 else jax.tree.map(structure_of, tree)
                with jax.transfer_guard("disallow"):
                    got = hm.replicate(tree, mesh, source=source)
                for name, value in values.items():
                    assert_everywhere(got["values"][name], mesh, np.asarray(value))
                assert_everywhere(got["list"][0], mesh, np.array(7, np.int32))
                assert_everywhere(got["list"][1], mesh, np.arange(3, dtype=got["list"][1].dtype))


def structure_of(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype)


@both
def test_keys_global_arrays_and_narrow_values(public: bool) -> None:
    me = jax.process_index()
    mesh, few = meshes_of((0, 1, 2, 3)), meshes_of((1, 2))
    keys = jax.random.split(jax.random.key(3), 4)
    for source in (None, 1):
        got = hm.replicate(keys if source in (None, me) else None, mesh, source=source)
        assert got.dtype == keys.dtype
        assert got.sharding.is_equivalent_to(NamedSharding(mesh, P()), 1)
        data = jax.random.key_data(got)
        oracle.assert_bits_equal(data.addressable_data(0), np.asarray(jax.random.key_data(keys)))
    # From mesh to mesh; processes that have no device there get an array without shards.
    first = hm.replicate({"x": np.arange(6.0)}, mesh)
    second = hm.replicate(first, few)
    assert len(second["x"].addressable_shards) == (2 if me in (1, 2) else 0)
    assert_everywhere(second["x"], few, np.arange(6, dtype=np.float32))
    # As on every way in: 64 bits become 32, but no value is lost in silence.
    assert hm.replicate(np.int64([-1]), mesh).dtype == np.int32
    with pytest.raises((hm.ShapeError, hm.ClusterError), match="2147483648"):
        hm.replicate(np.array([2**31]), mesh, source=2)
    with jax.set_mesh(mesh):
        assert_everywhere(hm.replicate(np.float32(2), None), mesh, np.float32([2])[0])


@both
def test_a_mesh_of_some_processes_and_a_source_outside(public: bool) -> None:
    me = jax.process_index()
    few = meshes_of((1, 2))
    value = oracle.noise((300, 9), np.float32)
    for source in (1, 3):
        mine = value if me == source else structure_of(value)
        got = hm.replicate(mine, few, source=source)
        assert got.shape == value.shape
        assert_everywhere(got, few, value)
    if me in (1, 2):  # the others need not call
        assert_everywhere(hm.replicate(value, few), few, value)


@both
def test_the_result_shares_no_memory_with_the_value(public: bool) -> None:
    mesh = meshes_of((0, 1, 2, 3))
    memory = np.ones(2**20 + 64, np.uint8)
    start = -memory.ctypes.data % 64  # an address that a device would take as it is
    value = memory[start : start + 2**20].view(np.float32)
    expected = value.copy()
    for source in (None, 0):
        got = hm.replicate(value, mesh, source=source)
        value[...] = 0
        assert_everywhere(got, mesh, expected)
        value[...] = expected


@both
def test_what_differs_is_named_on_every_process(public: bool) -> None:
    me = jax.process_index()
    mesh = meshes_of((0, 1, 2, 3))
    rows = np.zeros((40, 3), np.float32)
    rows[11, 2] = me == 2
    told = given_of(lambda: hm.replicate({"w": rows}, mesh))
    assert told == (
        "leaf ['w'] of float32[40,3]: process 2 differs from processes 0-1, 3 in 1 of 120 elements"
        " by up to 1, first at [11, 2]: 1.0 there, 0.0 on process 0"
    )
    told = given_of(lambda: hm.replicate(rows[: 3 + me // 3], mesh))
    assert told == "processes 0-2: the value: float32[3,3]; process 3: the value: float32[4,3]"
    told = given_of(lambda: hm.replicate(rows[: 3 + me // 3], mesh, source=1))
    assert told == "processes 0-2: float32[3,3]; process 3: float32[4,3]"
    with pytest.raises(hm.SpecError, match="process 9"):
        hm.replicate(rows, mesh, source=9)
    failed = hm.SpecError if me == 1 else hm.ClusterError
    with pytest.raises(failed, match="None on the source itself"):
        hm.replicate(None if me == 1 else rows, mesh, source=1)
    with pytest.raises(hm.SpecError if me == 3 else hm.ClusterError, match="mesh=None"):
        hm.replicate(rows, None if me == 3 else mesh)
    with pytest.raises(hm.DivergenceError, match=r"replicate\(source=0\) at .*replicate\(source=1"):
        hm.replicate(rows, mesh, source=me // 3)
    assert_everywhere(hm.replicate(rows * 0, mesh), mesh, rows * 0)


@both
def test_a_tree_that_none_cannot_learn_of_is_an_error_on_all(public: bool) -> None:
    me = jax.process_index()
    mesh = meshes_of((0, 1, 2, 3))

    class Pair:
        def __init__(self, a: Any, b: Any) -> None:
            self.a, self.b = a, b

    jax.tree_util.register_pytree_node(Pair, lambda p: ((p.a, p.b), None), lambda _, c: Pair(*c))
    pair = Pair(np.float32(1), np.float32(me == 0))
    with pytest.raises(hm.SpecError, match="None on process 3"):
        hm.replicate(pair if me < 3 else None, mesh, source=0)
    assert hm.replicate(pair, mesh, source=0).b.addressable_data(0) == 1


@pytest.mark.multiprocess(timeout=90)
def test_peak_memory_is_the_result_and_a_little() -> None:
    mesh = meshes_of((0, 1, 2, 3))
    me = jax.process_index()
    large = np.ones(2**25, np.float32)
    for source in (None, 2):
        mine = large if source in (None, me) else None
        jax.block_until_ready(hm.replicate(large[:4], mesh, source=source))
        results: list[Any] = []
        peak = peak_above(
            lambda m=mine, s=source, r=results: r.append(
                jax.block_until_ready(hm.replicate(m, mesh, source=s))
            )
        )
        assert results[0].shape == large.shape
        assert peak < large.nbytes + 64 * 2**20


def test_alone_no_service_is_needed() -> None:
    mesh = Mesh(jax.devices()[:1], "x")
    for source in (None, 0):
        got = hm.replicate({"a": np.arange(3), "b": 2.5}, mesh, source=source)
        assert got["a"].tolist() == [0, 1, 2]
        assert float(got["b"]) == 2.5
