"""What is handed out never changes, whatever the caller does with the memory it passed."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

import hostmesh as hm
import meshes
import oracle
from apis import both

SMALL, LARGE = 1 << 8, 1 << 18  # bytes of a process: below and above the size of pooled buffers


def buffer_at(offset: int, nbytes: int) -> np.ndarray:
    """Bytes at an address that is `offset` past a multiple of 64."""
    memory = np.zeros(nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    return memory[start : start + nbytes]


def specs() -> list[tuple[Any, P]]:
    """Layouts where a process's devices hold parts, the same part, and one with all others."""
    block, strided = meshes.KINDS["block"].mesh(), meshes.KINDS["strided"].mesh()
    return [(block, P(("x", "y"))), (block, P("x")), (block, P()), (strided, P(None, "x"))]


def pointers(array: jax.Array) -> list[int]:
    return [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]


@both
def test_a_batch_buffer_used_again_at_any_address(public: bool) -> None:
    """64 offsets x 4 layouts x 2 sizes x 2 functions: no array changes once it is handed out."""
    for nbytes in (SMALL, LARGE):
        for mesh, spec in specs():
            handed_out: list[tuple[jax.Array, int]] = []
            for offset in range(64):
                batch = buffer_at(offset, nbytes).reshape(16, -1)
                batch[...] = number = offset
                handed_out.append((hm.to_global(batch, mesh, spec), number))
                plan = hm.plan(mesh, spec, local_shape=batch.shape, process=jax.process_index())
                shard = batch.reshape(-1)[: np.prod(plan.shard_shape)]
                read = shard.reshape(plan.shard_shape)
                array = hm.from_callback(plan.global_shape, mesh, spec, lambda _, r=read: r)
                handed_out.append((array, number))
                batch[...] = 255
            for array, number in handed_out:
                for part in array.addressable_shards:
                    assert (jax.device_get(part.data) == number).all(), (spec, nbytes, number)


@both
def test_without_leave_no_memory_is_shared(public: bool) -> None:
    """The reason for the test above: the addresses differ, aligned or not, small or large."""
    for nbytes in (SMALL, LARGE):
        for mesh, spec in specs():
            for offset in (0, 1):
                batch = buffer_at(offset, nbytes).reshape(16, -1)
                first = batch.ctypes.data
                for pointer in pointers(hm.to_global(batch, mesh, spec)):
                    assert not first <= pointer < first + nbytes


@both
def test_a_buffer_given_up_is_taken_without_a_copy(public: bool) -> None:
    """64 MiB at an aligned address: same addresses, and no more memory."""
    nbytes = 64 * 2**20
    mesh = meshes.KINDS["block"].mesh()
    batch = buffer_at(0, nbytes).reshape(64, -1)
    batch[...] = jax.process_index() + 1
    hm.to_global(batch[:2], mesh, P("x"))  # whatever the first call loads
    before = _peak(reset=True)
    array = hm.to_global(batch, mesh, P(("x", "y")), may_alias=True)
    jax.block_until_ready(array)
    grown = _peak() - before
    assert sorted(pointers(array)) == [batch.ctypes.data, batch.ctypes.data + nbytes // 2]
    assert grown < nbytes // 16
    # The measure sees a copy where there is one (of a size of which no buffer lies ready).
    larger = np.ones((64, nbytes // 48), np.uint8)
    before = _peak(reset=True)
    copied = hm.to_global(larger, mesh, P(("x", "y")))
    jax.block_until_ready(copied)
    assert _peak() - before > nbytes
    for shard in array.addressable_shards:
        assert jax.device_get(shard.data)[0, 0] == jax.process_index() + 1


def _peak(reset: bool = False) -> int:
    """The peak of this process's memory in bytes, from now on with `reset`."""
    if reset:
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    (peak,) = (line for line in lines if line.startswith("VmHWM"))
    return int(peak.split()[1]) * 1024


@both
def test_a_buffer_given_up_may_be_anything(public: bool) -> None:
    """Not aligned, strided, read-only, converted: right all the same, with a copy where needed."""
    kind = meshes.KINDS["permuted"]
    mesh, layout = kind.mesh(), oracle.Layout(kind.axes, kind.owners, (("y",), ("x",)))
    for dtype in (np.int16, np.int64):
        value = oracle.ids((64, 128)).astype(dtype)
        local = layout.local(value, jax.process_index())
        read_only = local.copy()
        read_only.flags.writeable = False
        odd = buffer_at(1, local.nbytes).view()
        odd = np.ndarray(local.shape, dtype, buffer=odd)
        odd[...] = local
        for form in (local.copy(), np.asfortranarray(local), read_only, odd, local[::-1][::-1]):
            array = hm.to_global(form, mesh, P("y", "x"), may_alias=True)
            oracle.assert_shards(array, mesh, layout, value.astype(array.dtype))


@both
def test_memory_in_use_is_not_used_again(public: bool) -> None:
    """Buffers come back to a pool when arrays end: not while a view, a part or a program has them."""
    mesh = meshes.KINDS["block"].mesh()
    shape = (256, 1024)  # 1 MiB a process, 512 KiB a shard

    def make(number: float) -> jax.Array:
        return hm.to_global(np.full(shape, number, np.float32), mesh, P(("x", "y")))

    total = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda _, y: y * 1.0, x))
    kept: list[tuple[Any, float]] = []
    for number in range(12):
        array = make(number)
        view = np.asarray(jax.device_get(array.addressable_shards[0].data))
        part = array.addressable_shards[1].data
        local = hm.to_local(array)
        later = total(array)  # may still run when the array is gone
        kept += [(view, number), (part, number), (local, number), (later, number)]
        if number % 2:
            array.delete()
        del array
        for other in (-1, -2, -3):
            make(other)
    gc.collect()
    for _ in range(8):
        make(-4)
    for what, number in kept:
        if isinstance(what, jax.Array) and what.is_deleted():
            continue  # it shares its parts with an array that was deleted by name
        parts = [s.data for s in what.addressable_shards] if isinstance(what, jax.Array) else [what]
        for one in parts:
            assert (np.asarray(jax.device_get(one)) == number).all()


@both
def test_donated_arrays_do_not_write_to_what_others_read(public: bool) -> None:
    """A program may reuse a donated array's memory: never the caller's, nor another device's."""
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    for nbytes in (SMALL, LARGE):
        for mesh, spec in specs():
            batch = buffer_at(0, nbytes).view(np.float32).reshape(16, -1)
            batch[...] = 1
            arrays = [hm.to_global(batch, mesh, spec) for _ in range(4)]
            raised = [add(array) for array in arrays[:2]]
            assert (batch == 1).all()
            for array, number in [(a, 2) for a in raised] + [(a, 1) for a in arrays[2:]]:
                for shard in array.addressable_shards:
                    assert (jax.device_get(shard.data) == number).all()


@both
def test_conversions_in_many_threads(public: bool) -> None:
    """Threads convert batches of their own at once, and none sees another's."""
    mesh = meshes.KINDS["strided"].mesh()
    wrong: list[Any] = []

    def work(thread: int) -> None:
        batch = np.empty((64, 2048), np.float32)
        arrays: list[tuple[jax.Array, int]] = []
        for step in range(20):
            batch[...] = number = thread * 100 + step
            arrays.append((hm.to_global(batch, mesh, P("x", "y")), number))
            arrays = arrays[-4:]
            for array, expected in arrays:
                back = hm.to_local(array, numpy=True)
                if not (back == expected).all():
                    wrong.append((thread, step))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
