"""Global arrays from their pieces: read chunk by chunk, or handed over as arrays on devices."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, cast

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from . import _jax, _recipes, _staging, _values
from ._convert import mesh_for, sharding_for
from ._errors import HostmeshError, ShapeError, SpecError, at, build
from ._plan import Index, Shape, abridged


def from_callback(
    global_shape: Sequence[int],
    mesh: Mesh | None,
    spec: PartitionSpec | NamedSharding,
    read: Callable[[Index], npt.ArrayLike],
    *,
    dtype: npt.DTypeLike | None = None,
    threads: int | None = None,
) -> jax.Array:
    """Makes a global array by reading each distinct chunk of this process once.

    A chunk that several of this process's devices hold is read once and placed on each. Nothing is
    communicated.

    Args:
      global_shape: the shape of the whole array.
      mesh: the mesh; `None` takes that of the context, as in `to_global`.
      spec: its partition spec, or a `NamedSharding`.
      read: called with the index of a chunk in the global array (slices with plain start and stop);
        returns the chunk's values, which are copied before the same thread reads again. Calls run
        in a pool of threads, in no fixed order.
      dtype: the dtype of the array; by default that of what `read` returns. A process without
        devices in the mesh must give it.
      threads: how many read at a time; by default as many as there are CPUs.

    Raises:
      SpecError, ShapeError: for a spec or shape that does not fit, and for a chunk of another shape
        or dtype, naming its index.
      Exception: what `read` raises, with a note of the index. Chunks not yet begun are then not read.

    >>> import jax, numpy as np, hostmesh
    >>> from jax.sharding import Mesh, PartitionSpec as P
    >>> data = np.arange(64.0, dtype=np.float32)
    >>> mesh = Mesh(jax.devices(), "x")
    >>> array = hostmesh.from_callback(data.shape, mesh, P("x"), lambda index: data[index])
    >>> all((shard.data == data[shard.index]).all() for shard in array.addressable_shards)
    True
    """
    where = f"from_callback on process {jax.process_index()}"
    try:
        sharding = sharding_for(mesh_for(mesh, [spec], "from_callback"), spec)
        shape, x64 = tuple(global_shape), _values.x64_enabled()
        wanted = None if dtype is None else np.dtype(dtype)
        layout = _recipes.inward(sharding, None, wanted or np.dtype(bool), shape, x64)
        if wanted is None and not layout.chunks:
            raise build(
                ShapeError,
                where=where,
                given="no dtype",
                rule="this process has no device in the mesh and reads nothing to take one from",
                advice="pass dtype= on every process",
            )
        indices = {chunk: layout.plan.global_index(chunk) for chunk in layout.chunks}

        def load(index: Index) -> tuple[np.dtype[Any], npt.NDArray[Any]]:
            return _load(read, index, layout.plan.shard_shape, wanted, x64)

        loaded = dict(zip(indices, _in_threads(load, list(indices.values()), threads), strict=True))
        found = {kind: indices[chunk] for chunk, (kind, _) in loaded.items()}
        if len(found) > 1:
            raise build(
                ShapeError,
                where=where,
                given="chunks of dtypes "
                + ", ".join(f"{kind} at {_show(index)}" for kind, index in found.items()),
                rule="all chunks of an array have one dtype",
                advice="convert them in read",
            )
        kind = wanted or next(iter(found))
        recipe = _recipes.inward(sharding, None, kind, shape, x64)
        parts = [loaded[chunk][1] for chunk in recipe.chunks]
        with _jax.explicit_transfers():
            return _jax.put(recipe.aval, sharding, parts, recipe.devices, True)
    except HostmeshError as error:
        raise at(error, where) from error.__cause__


def _load(
    read: Callable[[Index], npt.ArrayLike],
    index: Index,
    shape: Shape,
    wanted: np.dtype[Any] | None,
    x64: bool,
) -> tuple[np.dtype[Any], npt.NDArray[Any]]:
    """Reads one chunk: the dtype that it came in, and a copy in the dtype of the device."""
    try:
        value = read(index)
    except Exception as error:
        error.add_note(f"hostmesh.from_callback: while reading index {_show(index)}")
        raise
    source = _values.as_host_array(value, "leaf")
    if source.shape != shape or wanted not in (None, source.dtype):
        raise build(
            ShapeError,
            where="leaf",
            given=f"from read({_show(index)}) an array of shape {source.shape}, dtype {source.dtype}",
            rule=f"the chunk at this index is of shape {shape}"
            + (f" and dtype {wanted}" if wanted else ""),
            advice="return just the values of the index, in that dtype",
        )
    target = _staging.buffer(shape, _values.device_dtype(source.dtype, x64))
    _values.convert(source, target, "leaf")
    return source.dtype, target


def _in_threads(
    load: Callable[[Index], Any], indices: Sequence[Index], threads: int | None
) -> list[Any]:
    """Loads all indices in a pool; the first failure cancels what has not begun."""
    workers = min(threads or os.cpu_count() or 1, len(indices))
    if workers <= 1:
        return [load(index) for index in indices]
    with ThreadPoolExecutor(workers, "hostmesh-read") as pool:
        futures = [pool.submit(load, index) for index in indices]
        wait(futures, return_when=FIRST_EXCEPTION)
        failed = next(
            (f for f in futures if f.done() and not f.cancelled() and f.exception()), None
        )
        if failed is not None:
            pool.shutdown(wait=True, cancel_futures=True)
            failed.result()
        return [future.result() for future in futures]


def from_shards(
    global_shape: Sequence[int],
    sharding: Sharding,
    shards: Sequence[jax.Array],
    *,
    dtype: npt.DTypeLike | None = None,
) -> jax.Array:
    """Makes a global array of arrays that lie on this process's devices already, without a copy.

    `jax.make_array_from_single_device_arrays` with checks. Nothing is communicated.

    Args:
      global_shape: the shape of the whole array.
      sharding: its sharding, on all processes' devices.
      shards: one array on each of the sharding's devices of this process, in any order.
      dtype: needed only where this process has none of the sharding's devices.

    Raises:
      SpecError: where a device's shard is missing, there twice, or on a foreign device.
      ShapeError: where a shard is of another shape or dtype than the sharding asks for.

    >>> import jax, jax.numpy as jnp, hostmesh
    >>> from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    >>> sharding = NamedSharding(Mesh(jax.devices(), "x"), P("x"))
    >>> shards = [jax.device_put(jnp.zeros(2), device) for device in jax.local_devices()]
    >>> hostmesh.from_shards((2 * jax.device_count(),), sharding, shards).shape[0] == 2 * len(
    ...     jax.devices()
    ... )
    True
    """
    where = f"from_shards on process {jax.process_index()}"
    shape = tuple(global_shape)
    if isinstance(sharding, NamedSharding):
        try:
            _recipes.inward(sharding, None, np.dtype(bool), shape, x64=True)
        except HostmeshError as error:
            raise at(error, where) from None
    if foreign := [
        type(x).__name__ for x in cast("Sequence[object]", shards) if not isinstance(x, jax.Array)
    ]:
        raise build(
            ShapeError,
            where=where,
            given=f"shards of type {', '.join(sorted(set(foreign)))}",
            rule="shards are jax.Arrays, each on the device where it is to stay",
            advice="place them with jax.device_put(shard, device), or use from_callback",
        )
    held = [next(iter(shard.devices())) for shard in shards if len(shard.devices()) == 1]
    needed = sharding.addressable_devices
    problems = [
        f"{name} {', '.join(str(d.id) for d in sorted(found, key=lambda d: d.id))}"
        for name, found in (
            ("none for devices", needed - set(held)),
            ("more than one for devices", {d for d in held if held.count(d) > 1}),
            ("some on foreign devices", set(held) - needed),
        )
        if found
    ]
    if len(held) != len(shards):
        problems.append(f"{len(shards) - len(held)} spread over several devices")
    if problems:
        raise build(
            SpecError,
            where=where,
            given=f"{len(shards)} shards: {'; '.join(problems)}",
            rule=f"each of the {len(needed)} devices of this process in the sharding has one shard",
            advice="pass one single-device array for each of sharding.addressable_devices",
        )
    kind = np.dtype(dtype) if dtype is not None else shards[0].dtype if shards else None
    wanted = sharding.shard_shape(shape)
    for device, shard in zip(held, shards, strict=True):
        if shard.shape != wanted or shard.dtype != kind:
            raise build(
                ShapeError,
                where=where,
                given=f"on device {device.id} a shard of shape {shard.shape}, dtype {shard.dtype}",
                rule=f"a shard of global shape {shape} is of shape {wanted}, and dtype {kind} as"
                " the others",
                advice="cut the array as sharding.shard_shape says, and convert it before",
            )
    if kind is None:
        raise build(
            ShapeError,
            where=where,
            given="no shards and no dtype",
            rule="this process has none of the sharding's devices, so no shard tells the dtype",
            advice="pass dtype= on every process",
        )
    return jax.make_array_from_single_device_arrays(shape, sharding, list(shards), dtype=kind)


def _show(index: Index) -> str:
    return abridged([tuple((cut.start, cut.stop) for cut in index)])
