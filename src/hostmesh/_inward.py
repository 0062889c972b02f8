"""One host-local leaf to a global array."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding

from . import _jax, _recipes, _staging, _transforms, _values
from ._errors import ShapeError, SpecError, build
from ._outward import to_numpy
from ._plan import Bounds, Chunk, Shape, bounds
from ._topology import Topology


def leaves_to_global(
    leaves: Iterable[Any],
    shardings: Iterable[NamedSharding],
    global_shapes: Iterable[Shape | None],
    x64: bool,
    may_alias: bool,
) -> Iterator[jax.Array]:
    """The global array of each leaf in turn, whatever its kind.

    An error is raised when its leaf's turn has come, and is placed there by callers. To be called
    within `_jax.explicit_transfers()`.
    """
    last: Any = None
    convert: Any = None  # that of the last kind: leaves of one kind often follow each other
    for leaf, sharding, shape in zip(leaves, shardings, global_shapes, strict=True):
        if type(leaf) is not np.ndarray or leaf.dtype.kind not in "fiub":
            if isinstance(leaf, Tracer):
                yield _transforms.to_global_p.bind(
                    leaf, sharding=sharding, global_shape=shape, add=False
                )
                continue
            if isinstance(leaf, jax.Array):
                yield array_to_global(leaf, sharding, shape)
                continue
            if isinstance(leaf, jax.ShapeDtypeStruct):
                yield _absent_to_global(leaf, sharding, x64)
                continue
            leaf = _values.as_host_array(leaf, "leaf")
        kind = leaf.shape, leaf.dtype, sharding, shape
        if kind != last:
            recipe = _recipes.inward(sharding, leaf.shape, leaf.dtype, shape, x64)
            convert, last = _converter(recipe, leaf.dtype, may_alias), kind
        yield convert(leaf)


def _converter(
    recipe: _recipes.Inward, dtype: np.dtype[Any], may_alias: bool
) -> Callable[[_values.HostArray], jax.Array]:
    """What makes global arrays of host arrays of one kind."""
    if recipe.direct or (may_alias and dtype == recipe.dtype):
        return _jax.putter(recipe.aval, recipe.sharding, recipe.cut, recipe.devices, may_alias)
    return lambda leaf: put_copies(recipe, dict(zip(recipe.chunks, recipe.cut(leaf), strict=True)))


def put_copies(recipe: _recipes.Inward, chunks: dict[Chunk, Any]) -> jax.Array:
    """Copies each distinct chunk once into memory of our own, which its devices then share."""
    owned: dict[Chunk, Any] = {}
    for chunk, source in chunks.items():
        owned[chunk] = _staging.buffer(recipe.plan.shard_shape, recipe.dtype)
        _values.convert(source, owned[chunk], "leaf")
    parts = [owned[chunk] for chunk in recipe.chunks]
    return _jax.put(recipe.aval, recipe.sharding, parts, recipe.devices, True)


def array_to_global(
    leaf: jax.Array, sharding: NamedSharding, global_shape: Shape | None = None
) -> jax.Array:
    """The global array of a `jax.Array` on this process's devices, moved from device to device."""
    if not leaf.is_fully_addressable:
        if leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
            return leaf
        raise build(
            SpecError,
            where="leaf",
            given=f"a global array of shape {leaf.shape} and sharding {leaf.sharding}",
            rule="an array that is global already passes through as it is, but"
            f" {sharding.spec} on this mesh is another layout",
            advice="reshard it with jax.device_put(array, NamedSharding(mesh, spec)), or pass its"
            " host-local value (to_local)",
        )
    if _values.is_key(leaf.dtype):
        _recipes.check_rank(sharding, leaf.ndim)
        data = jax.random.key_data(leaf)
        shape = None if global_shape is None else global_shape + data.shape[leaf.ndim :]
        data = array_to_global(data, sharding, shape)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    # JAX made its dtype: it needs no narrowing, whatever the x64 mode is now.
    recipe = _recipes.inward(sharding, leaf.shape, np.dtype(leaf.dtype), global_shape, x64=True)
    held = _shards(leaf)
    wanted = [bounds(index, leaf.shape) for index in recipe.indices]
    if not held.keys() >= set(wanted):
        target = recipe.local_sharding()
        if target is None:  # no sharding cuts it so: over the host
            values = to_numpy(leaf)
            chunks = zip(recipe.chunks, recipe.indices, strict=True)
            return put_copies(recipe, {chunk: values[index] for chunk, index in chunks})
        held = _shards(jax.device_put(leaf, target))
    parts = [
        jax.device_put(held[place].get(device, next(iter(held[place].values()))), device)
        for place, device in zip(wanted, recipe.devices, strict=True)
    ]
    return _jax.assemble(recipe.aval, sharding, parts)


def _shards(array: jax.Array) -> dict[Bounds, dict[_jax.Device, jax.Array]]:
    """The parts of an array on this process by where they lie, and each by device."""
    held: dict[Bounds, dict[_jax.Device, jax.Array]] = {}
    for shard in array.addressable_shards:
        held.setdefault(bounds(shard.index, array.shape), {})[shard.device] = shard.data
    return held


def _absent_to_global(leaf: jax.ShapeDtypeStruct, sharding: NamedSharding, x64: bool) -> jax.Array:
    """The global array on a process that holds nothing of it."""
    process = jax.process_index()
    if Topology.from_mesh(_recipes.mesh_of(sharding)).holds(process):
        raise build(
            ShapeError,
            where="leaf",
            given=f"a jax.ShapeDtypeStruct of shape {leaf.shape}",
            rule=f"it stands for the values of a process without devices, but process {process} has"
            " devices in the mesh",
            advice="pass this process's host-local value",
        )
    if _values.is_key(leaf.dtype):
        _recipes.check_rank(sharding, len(leaf.shape))
        data, impl = _values.key_data_shape(leaf)
        return jax.random.wrap_key_data(_absent_to_global(data, sharding, x64), impl=impl)
    recipe = _recipes.inward(sharding, None, np.dtype(leaf.dtype), leaf.shape, x64)
    return _jax.assemble(recipe.aval, sharding, [])
