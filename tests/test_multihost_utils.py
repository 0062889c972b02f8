"""The drop-in module: JAX's results where JAX is right, and the differences that the docs list."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.experimental import multihost_utils as peer
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hostmesh as hm
import oracle
from hostmesh import multihost_utils as ours

FOUR = pytest.mark.multiprocess(processes=4, devices=2)


@pytest.fixture(autouse=True)
def _guards_are_not_for_jax_itself() -> Iterator[None]:
    with jax.transfer_guard("allow"):
        yield


def raises_in_both(call: Any, kind: type[Exception], words: str) -> None:
    """The same kind of error and words, from JAX's module and from ours."""
    for module in (peer, ours):
        with pytest.raises(kind, match=words):
            call(module)


def test_every_public_function_is_there_with_jax_s_signature() -> None:
    public = {
        name: value
        for name, value in vars(peer).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__ == peer.__name__
    }
    public["live_devices"] = peer.live_devices
    # Pieces of JAX's primitives, which no program calls.
    mechanics = {n for n in public if n.endswith(("_impl", "_abstract_eval", "_batcher"))}
    for name in public.keys() - mechanics:
        mine = getattr(ours, name)
        if isinstance(public[name], types.FunctionType):
            theirs = inspect.signature(public[name]).parameters.values()
            own = inspect.signature(mine).parameters.values()
            assert [(p.name, p.default, p.kind) for p in own] == [
                (p.name, p.default, p.kind) for p in theirs
            ], name


@FOUR
def test_gathers_and_broadcasts_are_jax_s_where_jax_keeps_the_values() -> None:
    me = jax.process_index()
    tree = {
        dtype: oracle.noise((4, 2), dtype, me).astype(dtype)
        for dtype in ("bool", "int8", "uint16", "int32")
    }
    rng = np.random.default_rng(me)
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float32, np.complex64):
        tree[np.dtype(dtype).name] = rng.normal(size=(4, 2)).astype(dtype)
    tree["empty"], tree["scalar"] = np.zeros((2, 0), np.float32), np.float32(me)
    tree["array"] = jax.numpy.arange(3) * me
    for tiled in (False, True):
        theirs = peer.process_allgather(tree, tiled=tiled)
        got = ours.process_allgather(tree, tiled=tiled)
        assert got.keys() == theirs.keys()
        for name in got:
            oracle.assert_bits_equal(got[name], np.asarray(theirs[name]), (name, tiled))
            assert type(got[name]) is type(theirs[name]) is np.ndarray
    for flag in (None, me == 2):
        theirs = peer.broadcast_one_to_all(tree, is_source=flag)
        got = ours.broadcast_one_to_all(tree, is_source=flag)
        for name in got:
            oracle.assert_bits_equal(got[name], np.asarray(theirs[name]), name)
    # Global arrays, sharded and replicated.
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))
    value = np.arange(64, dtype=np.float32).reshape(8, 8)
    for spec in (P("x"), P("y", "x"), P()):
        array = jax.make_array_from_callback((8, 8), NamedSharding(mesh, spec), value.__getitem__)
        for module in (peer, ours):
            oracle.assert_bits_equal(module.process_allgather(array, tiled=True), value)
        raises_in_both(lambda m, x=array: m.process_allgather(x), ValueError, "only supports")


@FOUR
def test_checks_and_waits_are_jax_s() -> None:
    me = jax.process_index()
    for module in (peer, ours):
        module.sync_global_devices("here")
        module.assert_equal({"a": np.arange(3), "b": np.float32(2)}, "all equal")
    raises_in_both(lambda m: m.sync_global_devices(f"at {me // 3}"), AssertionError, "at [01]")
    raises_in_both(lambda m: m.assert_equal(np.arange(3) + me // 2, "oh"), AssertionError, "^oh")
    mesh = Mesh(np.array(jax.devices()), ("x",))
    raises_in_both(
        lambda m: m.host_local_array_to_global_array(np.arange(2), mesh, None), ValueError, "None"
    )
    raises_in_both(
        lambda m: m.host_local_array_to_global_array(np.arange(3), mesh, P("x")),
        ValueError,
        r"divi|multiple",
    )
    # Without preemption service both say so, and where it is off both say no.
    found: list[object] = []
    for module in (peer, ours):
        try:
            found.append(module.reached_preemption_sync_point(0))
        except RuntimeError:
            found.append(RuntimeError)
    assert found[0] == found[1]


@FOUR
@pytest.mark.filterwarnings("ignore:.*requested dtype int64:UserWarning")
@pytest.mark.filterwarnings("ignore:.*truncat:UserWarning")
def test_what_is_sent_keeps_all_its_bits() -> None:
    me = jax.process_index()
    # 64-bit integers and floats; JAX cuts them to 32 bits while its x64 mode is off.
    wide = np.array([2**40 + me, -(2**50)], np.int64)
    exact = np.array([1 + 2.0**-40 * (me + 1)], np.float64)
    for value in (wide, exact):
        everyone = np.stack([np.array([2**40 + p, -(2**50)]) for p in range(4)])
        if value is exact:
            everyone = np.array([[1 + 2.0**-40 * (p + 1)] for p in range(4)])
        oracle.assert_bits_equal(ours.process_allgather(value), everyone)
        oracle.assert_bits_equal(ours.broadcast_one_to_all(value), everyone[0])
        assert not np.array_equal(peer.process_allgather(value), everyone)
        assert not np.array_equal(peer.broadcast_one_to_all(value), everyone[0])
    # The sign of zero, which a sum with zeros loses.
    zero = np.float32(-0.0)
    oracle.assert_bits_equal(ours.broadcast_one_to_all(zero), np.asarray(zero))
    assert not np.signbit(peer.broadcast_one_to_all(zero))
    # NaN payloads, signalling ones too, and subnormals.
    bits = np.array([0x7F800001, 0xFFC12345, 0x7FC00000, 1, 0x80000001], np.uint32)
    odd = bits.view(np.float32)
    oracle.assert_bits_equal(ours.broadcast_one_to_all(odd), odd)
    oracle.assert_bits_equal(ours.process_allgather(odd), np.stack([odd] * 4))


@FOUR
def test_keys_numbers_and_lists_are_sent() -> None:
    me = jax.process_index()
    keys = jax.random.split(jax.random.key(me), 2)
    stacked = ours.process_allgather(keys)
    first = ours.broadcast_one_to_all(keys)
    assert stacked.dtype == first.dtype == keys.dtype
    for p in range(4):
        expected = np.asarray(jax.random.key_data(jax.random.split(jax.random.key(p), 2)))
        oracle.assert_bits_equal(jax.random.key_data(stacked)[p], expected)
        if p == 0:
            oracle.assert_bits_equal(jax.random.key_data(first), expected)
    for function in (peer.process_allgather, peer.broadcast_one_to_all):
        with pytest.raises((TypeError, ValueError, AttributeError)):
            function(keys)
    # Python numbers and lists of them as host-local values.
    mesh = Mesh(np.array(jax.devices()), ("x",))
    array = ours.host_local_array_to_global_array({"rate": 0.5}, mesh, P())["rate"]
    oracle.assert_bits_equal(array.addressable_data(0), np.asarray(0.5, np.float32))
    with pytest.raises(AttributeError):
        peer.host_local_array_to_global_array({"rate": 0.5}, mesh, P())


@FOUR
def test_equal_nans_are_equal_and_other_zeros_are_not() -> None:
    me = jax.process_index()
    nan = np.array([1, np.nan], np.float32)
    ours.assert_equal(nan)
    with pytest.raises(AssertionError):
        peer.assert_equal(nan)
    zero = np.float32(-0.0 if me == 1 else 0.0)
    peer.assert_equal(zero)
    with pytest.raises(AssertionError, match="process 1"):
        ours.assert_equal(zero)
    # 64 bits are compared, and what differs is told.
    wide = np.array([7, 2**40 + me // 3], np.int64)
    with pytest.raises(hm.DivergenceError, match="process 3") as caught:
        ours.assert_equal({"step": wide}, "steps")
    assert str(caught.value).startswith("steps\n")
    assert "['step']" in str(caught.value)
    assert str(2**40 + 1) in str(caught.value)


@FOUR
def test_first_sizes_may_differ_and_other_shapes_are_an_error_on_all() -> None:
    me = jax.process_index()
    rows = np.full((me, 2), me, np.float32)
    expected = np.concatenate([np.full((p, 2), p, np.float32) for p in range(4)])
    oracle.assert_bits_equal(ours.process_allgather(rows, tiled=True), expected)
    for call in (ours.process_allgather, ours.broadcast_one_to_all):
        with pytest.raises(hm.DivergenceError, match="process 3"):
            call(np.zeros((2, 3 + me // 3)))
    with pytest.raises(hm.SpecError, match="processes 1-2"):
        ours.broadcast_one_to_all(1, is_source=me in (1, 2))
    with pytest.raises(hm.SpecError, match="no process"):
        ours.broadcast_one_to_all(1, is_source=False)


@pytest.mark.multiprocess(devices=[1, 2])
def test_processes_with_unequal_numbers_of_devices() -> None:
    me = jax.process_index()
    assert ours.process_allgather(np.int32(me)).tolist() == [0, 1]
    assert ours.broadcast_one_to_all(np.int32(me)).tolist() == 0
    ours.assert_equal(7)
    ours.sync_global_devices("uneven")
    for call in (peer.process_allgather, peer.broadcast_one_to_all):
        with pytest.raises(ValueError, match="cannot reshape"):
            call(np.int32(me))


@FOUR
def test_any_mesh_converts() -> None:
    me = jax.process_index()
    own = np.array(jax.devices()).reshape(4, 2)
    mesh = Mesh(own.T.reshape(4, 2), ("x", "y"))  # dealt out by turns: no subcubes
    value = np.arange(32, dtype=np.float32).reshape(8, 4)
    array = jax.make_array_from_callback((8, 4), NamedSharding(mesh, P("x")), value.__getitem__)
    local = ours.global_array_to_host_local_array(array, mesh, P("x"))
    back = ours.host_local_array_to_global_array(np.asarray(local), mesh, P("x"))
    assert back.shape == (8, 4)
    for shard in back.addressable_shards:
        oracle.assert_bits_equal(shard.data, value[shard.index])
    with pytest.raises(ValueError, match=r"subcube|contiguous"):
        peer.host_local_array_to_global_array(np.asarray(local), mesh, P("x"))
    # A spec longer than the value's rank: an error that says so, where JAX has a bare IndexError.
    flat = Mesh(own, ("x", "y"))
    with pytest.raises(hm.SpecError, match="2 entries"):
        ours.host_local_array_to_global_array(np.arange(4) * me, flat, P("x", "y"))
    with pytest.raises(IndexError):
        peer.host_local_array_to_global_array(np.arange(4) * me, flat, P("x", "y"))


@FOUR
def test_the_caller_s_buffer_stays_the_caller_s() -> None:
    """JAX shares it on CPU where its address is a multiple of 64, so that a reuse changes arrays."""
    mesh = Mesh(np.array(jax.devices()), ("x",))
    memory = np.zeros(4096 + 64, np.uint8)
    start = -memory.ctypes.data % 64
    batch = memory[start : start + 4096].view(np.float32)
    mine = ours.host_local_array_to_global_array(batch, mesh, P())
    theirs = peer.host_local_array_to_global_array(batch, mesh, P())
    jax.block_until_ready((mine, theirs))
    batch[...] = 1
    assert not np.asarray(mine.addressable_data(0)).any()
    assert np.asarray(theirs.addressable_data(0)).any()


@FOUR
def test_derivatives_and_vmap_pass_through() -> None:
    me = jax.process_index()
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))
    local = np.arange(4, dtype=np.float32) + me
    square = jax.jit(lambda x: (x * x).sum())

    def gradient(module: Any) -> Any:
        inward = module.host_local_array_to_global_array
        return jax.grad(lambda x: square(inward(x, mesh, P("x"))))(local)

    def batched(module: Any) -> Any:
        array = ours.host_local_array_to_global_array(local.reshape(2, 2), mesh, P(None, "x"))
        outward = module.global_array_to_host_local_array
        return jax.vmap(lambda x: outward(x, mesh, P("x")))(array)

    np.testing.assert_allclose(np.asarray(gradient(ours)), 2 * local)
    np.testing.assert_array_equal(np.asarray(batched(ours)), local.reshape(2, 2))
    for call in (gradient, batched):
        with pytest.raises((TypeError, ValueError, AssertionError)):
            call(peer)


def test_the_page_of_differences_names_tests_that_are_there() -> None:
    here = Path(__file__).resolve().parent
    page = (here.parent / "docs" / "differences.md").read_text()
    named = re.findall(r"`tests/(\w+\.py)::(\w+)`", page)
    assert len(named) > 15
    for file, test in named:
        assert f"\ndef {test}(" in (here / file).read_text(), f"{file}::{test}"
