"""The same values as JAX's own functions, on every layout that these take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils as peer
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hostmesh as hm
import meshes
import oracle
from hostmesh import multihost_utils

pytestmark = pytest.mark.multiprocess
SHAPE = (16, 8, 8)


@pytest.fixture(autouse=True)
def _guards_are_not_for_jax_itself() -> Iterator[None]:
    """JAX's own functions move data without being asked by name; other tests guard against it."""
    with jax.transfer_guard("allow"):
        yield


def same(got: jax.Array, expected: jax.Array) -> None:
    """Equal in shape, dtype, layout and, on every device of this process, in bits."""
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    assert got.sharding.is_equivalent_to(expected.sharding, got.ndim)
    assert got.committed == expected.committed
    theirs = {shard.device: shard for shard in expected.addressable_shards}
    assert theirs.keys() == {shard.device for shard in got.addressable_shards}
    for shard in got.addressable_shards:
        assert shard.index == theirs[shard.device].index
        assert shard.replica_id == theirs[shard.device].replica_id
        oracle.assert_bits_equal(shard.data, jax.device_get(theirs[shard.device].data))


def test_every_layout_that_jax_takes() -> None:
    me = jax.process_index()
    taken: dict[str, int] = {}
    for seed, (name, kind, spec, layout) in enumerate(oracle.layouts()):
        mesh = kind.mesh()
        value = oracle.noise(SHAPE, (np.float32, np.int16, np.complex64)[seed % 3], seed)
        local = layout.local(value, me)
        try:
            expected = peer.host_local_array_to_global_array(local, mesh, P(*spec))
        except ValueError:  # no contiguous subcube
            assert not all(layout.is_subcube(p) for p in range(4))
            continue
        taken[name] = taken.get(name, 0) + 1
        same(hm.to_global(local, mesh, P(*spec)), expected)
        same(multihost_utils.host_local_array_to_global_array(local, mesh, P(*spec)), expected)
        back = peer.global_array_to_host_local_array(expected, mesh, P(*spec))
        same(hm.to_local(expected), back)
        same(hm.to_local(expected, mesh, P(*spec)), back)
        same(multihost_utils.global_array_to_host_local_array(expected, mesh, P(*spec)), back)
    assert taken["block"] == taken["flat"] == 8


def test_every_layout_of_process_local_data() -> None:
    """`jax.make_array_from_process_local_data` takes layouts by another rule: a peer of its own."""
    me, taken = jax.process_index(), 0
    for _, kind, spec, layout in oracle.layouts():
        value = oracle.noise(SHAPE, np.float32)
        local = layout.local(value, me)
        sharding = NamedSharding(kind.mesh(), P(*spec))
        try:
            expected = jax.make_array_from_process_local_data(sharding, local, SHAPE)
        except ValueError:
            continue
        taken += 1
        same(hm.to_global(local, None, sharding, global_shape=SHAPE), expected)
    assert taken >= 16


def test_every_layout_from_a_callback() -> None:
    value = oracle.noise(SHAPE, np.float32)
    for _, kind, spec, _ in oracle.layouts():
        sharding = NamedSharding(kind.mesh(), P(*spec))
        expected = jax.make_array_from_callback(SHAPE, sharding, value.__getitem__)
        same(hm.from_callback(SHAPE, None, sharding, value.__getitem__), expected)


def test_trees_numbers_and_arrays_on_devices() -> None:
    mesh = meshes.KINDS["block"].mesh()
    local = np.arange(8, dtype=np.float32).reshape(4, 2)
    keys = oracle.keys(4)
    tree: dict[str, Any] = {"a": local, "b": [jax.device_put(local), None], "c": np.float32(3)}
    specs: dict[str, Any] = {"a": P("x"), "b": P("x", "y"), "c": P()}
    expected = peer.host_local_array_to_global_array(tree, mesh, specs)
    got = multihost_utils.host_local_array_to_global_array(tree, mesh, specs)
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    jax.tree.map(same, got, expected)
    expected_keys = peer.host_local_array_to_global_array(keys, mesh, P("x"))
    got_keys = multihost_utils.host_local_array_to_global_array(keys, mesh, P("x"))
    assert got_keys.dtype == expected_keys.dtype
    same(jax.random.key_data(got_keys), jax.random.key_data(expected_keys))
    # What is global already passes through both, whatever the spec.
    for function in (peer, multihost_utils):
        assert function.host_local_array_to_global_array(got["a"], mesh, P()) is got["a"]
    # A fully addressable array passes through on the way out.
    alone = jax.device_put(local)
    for function in (peer, multihost_utils):
        same(function.global_array_to_host_local_array(alone, mesh, P("x")), alone)


def test_the_three_reference_examples() -> None:
    me, processes = jax.process_index(), jax.process_count()
    flat = Mesh(np.array(jax.devices()), ("x",))
    grid = Mesh(np.array(jax.devices()).reshape(processes, -1), ("host", "dev"))
    rows = np.concatenate([np.arange(4) * p for p in range(processes)]).astype(np.int32)
    for mesh, spec, local, expected in (
        (flat, P("x"), np.arange(4) * me, rows),
        (grid, P("host"), np.arange(4) * me, rows),
        (flat, P(), np.arange(4), np.arange(4, dtype=np.int32)),
    ):
        array = hm.to_global(local, mesh, spec)
        same(array, peer.host_local_array_to_global_array(local, mesh, spec))
        assert array.shape == expected.shape
        for shard in array.addressable_shards:
            oracle.assert_bits_equal(shard.data, expected[shard.index])
        out = jax.jit(lambda x: x * 2)(array)
        oracle.assert_bits_equal(hm.to_local(out, mesh, spec), local.astype(np.int32) * 2)


def test_meshes_of_explicit_axes() -> None:
    """The type of an array names its axes there, and programs are typed by them."""
    explicit = (AxisType.Explicit,) * 2
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"), axis_types=explicit)
    for rows in (8, 1 << 16):  # small shards, and such as go by buffers of the pool
        local = np.ones((rows, 4), np.float32)
        expected = peer.host_local_array_to_global_array(local, mesh, P("x"))
        on_device = jax.device_put(local)
        for got in (
            hm.to_global(local, mesh, P("x")),
            hm.to_global(on_device, mesh, P("x")),
            hm.from_callback(expected.shape, mesh, P("x"), lambda _, part=local: part),
        ):
            same(got, expected)
            assert jax.typeof(got) == jax.typeof(expected)
        with jax.set_mesh(mesh):
            total = jax.jit(lambda x, y: x + y)(got, expected)
            back = peer.global_array_to_host_local_array(total, mesh, P("x"))
        same(hm.to_local(total), back)
        assert jax.typeof(hm.to_local(total)) == jax.typeof(back)
