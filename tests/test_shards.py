"""Global arrays from their pieces: read chunk by chunk, or handed over on devices."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import hostmesh as hm
import meshes
import oracle
from apis import both

SHAPE = (16, 8, 8)  # what every spec of every kind of mesh cuts evenly


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
