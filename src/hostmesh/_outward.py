"""Global arrays to what one process holds of them: its host-local value, or all of the array."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from jax.core import Tracer
from jax.sharding import NamedSharding

from . import _jax, _recipes, _transforms, _values
from ._errors import ShapeError, SpecError, build
from ._plan import Bounds, Plan, abridged, bounds, plan


def leaves_to_local(
    leaves: Iterable[Any], shardings: Iterable[NamedSharding | None], numpy: bool
) -> Iterator[Any]:
    """The host-local value of each leaf in turn; an error is raised when its leaf's turn has come."""
    last: Any = None
    convert: Any = None  # that of the last kind: leaves of one kind often follow each other
    for leaf, sharding in zip(leaves, shardings, strict=True):
        if type(leaf) is not _jax.array_type:
            yield leaf_to_local(leaf, sharding, numpy)
            continue
        kind = leaf.sharding, sharding, leaf.shape, leaf.dtype
        if kind != last:
            convert, last = _converter(leaf, sharding, numpy), kind
        yield convert(leaf)


def _converter(
    leaf: jax.Array, sharding: NamedSharding | None, numpy: bool
) -> Callable[[jax.Array], Any]:
    """What gives the host-local values of arrays like this one."""
    if not numpy and sharding is not None and sharding == leaf.sharding:
        recipe = _recipes.outward(sharding, leaf.shape, leaf.dtype)
        assemble, order = recipe.assemble, recipe.order
        if recipe.sources and assemble is not None and recipe.in_order:
            return lambda leaf: assemble(_jax.parts_in_order(leaf, order))
    return lambda leaf: leaf_to_local(leaf, sharding, numpy)


def leaf_to_local(leaf: Any, sharding: NamedSharding | None, numpy: bool) -> Any:
    """The host-local value of one leaf; errors are placed at the leaf by callers."""
    if type(leaf) is not _jax.array_type:  # spares the usual leaf these questions
        if isinstance(leaf, Tracer):
            return _trace_to_local(leaf, sharding)
        _check_array(leaf, "leaf")
        if _values.is_key(leaf.dtype):
            return _keys_to_local(leaf, sharding, numpy)
    own = leaf.sharding
    if sharding is None or (sharding is not own and sharding != own):
        laid = laid_out(leaf, sharding, whole=True)
        if laid is None:
            return to_numpy(leaf) if numpy else leaf
        leaf, sharding = laid
    recipe = _recipes.outward(sharding, leaf.shape, leaf.dtype)
    if not recipe.sources:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    if recipe.assemble is None:
        raise _missing(recipe.plan)
    if recipe.in_order and not numpy:
        return recipe.assemble(_jax.parts_in_order(leaf, recipe.order))
    parts = _jax.parts_by_device(leaf)
    if not numpy:
        return recipe.assemble([parts[device] for device in recipe.order])
    out = np.empty(recipe.aval.shape, recipe.aval.dtype)
    for device, index in recipe.sources:
        out[index] = _jax.fetch(parts[device])
    return out


def laid_out(
    leaf: jax.Array, sharding: NamedSharding | None, *, whole: bool
) -> tuple[jax.Array, NamedSharding] | None:
    """An array in the layout that is wanted, by default its own; `None` if it is host-local already.

    Reshards an array of another layout, which communicates. With `whole` it raises first, on all
    processes, where any of them would not hold all of its host-local value.
    """
    own = leaf.sharding
    if leaf.is_fully_addressable and not _lies_here(own, sharding):
        return None
    if sharding is None:
        return leaf, _named(own)
    if len(sharding.spec) > leaf.ndim:
        _recipes.check_rank(sharding, leaf.ndim)  # raises; JAX's comparison would fail bare
    if not own.is_equivalent_to(sharding, leaf.ndim):
        if whole:
            _require_products(sharding, leaf.shape)
        leaf = _reshard(leaf, sharding)
    return leaf, sharding


def _require_products(sharding: NamedSharding, shape: tuple[int, ...]) -> None:
    layout = plan(_recipes.mesh_of(sharding), sharding.spec, global_shape=shape)
    for process in layout.topology.processes:
        if not layout.is_product(process):
            raise _missing(dataclasses.replace(layout, process=process))


def _lies_here(own: jax.sharding.Sharding, wanted: NamedSharding | None) -> bool:
    """Whether an array on this process alone is meant as a global one, on a mesh of its own."""
    return isinstance(own, NamedSharding) and (wanted is None or wanted.is_fully_addressable)


def _named(own: jax.sharding.Sharding) -> NamedSharding:
    if isinstance(own, NamedSharding):
        return own
    raise build(
        SpecError,
        where="leaf",
        given=f"an array of sharding {own}",
        rule="its host-local value is known for a NamedSharding only",
        advice="pass mesh and specs, to which it is then resharded (this communicates)",
    )


def _keys_to_local(keys: jax.Array, sharding: NamedSharding | None, numpy: bool) -> Any:
    if numpy:
        raise _no_numpy(keys, "leaf")
    if sharding is not None:
        _recipes.check_rank(sharding, keys.ndim)
    data = leaf_to_local(jax.random.key_data(keys), sharding, numpy)
    if isinstance(data, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(keys.shape, keys.dtype)
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(keys))


def to_numpy(array: jax.Array, *, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
    """Gives the whole of a global array as NumPy, where this process's devices hold all of it.

    Nothing is communicated: replicated arrays, arrays on this process alone, and any layout whose
    shards here cover the array. Shards are copied one after another into the result.

    Args:
      array: the global array.
      out: an array of the same shape and dtype to fill; by default a new one.

    Returns:
      `out`, or a new array that the caller owns and may write.

    Raises:
      ShapeError: where parts are on other processes only (it names them), or `out` does not fit.

    >>> import jax.numpy as jnp, hostmesh
    >>> hostmesh.to_numpy(jnp.arange(3))
    array([0, 1, 2], dtype=int32)
    """
    _check_array(array, "to_numpy")
    if _values.is_key(array.dtype):
        raise _no_numpy(array, "to_numpy")
    if out is not None and (out.shape != array.shape or out.dtype != array.dtype):
        raise build(
            ShapeError,
            where="to_numpy",
            given=f"out of shape {out.shape} and dtype {out.dtype}",
            rule=f"the array is of shape {array.shape} and dtype {array.dtype}",
            advice="pass an array of that shape and dtype, or leave out= away",
        )
    shards = _distinct_shards(array)
    if not _covers(array, shards):
        raise _elsewhere(array, shards)
    if out is None:
        out = np.empty(array.shape, np.dtype(array.dtype))
    for shard in shards.values():
        out[shard.index] = _jax.fetch(shard.data)
    return out


def is_locally_complete(array: jax.Array) -> bool:
    """Whether this process's devices hold all of an array, so that `to_numpy` takes it.

    >>> import jax.numpy as jnp, hostmesh
    >>> hostmesh.is_locally_complete(jnp.arange(3))
    True
    """
    _check_array(array, "is_locally_complete")
    data = jax.random.key_data(array) if _values.is_key(array.dtype) else array
    return _covers(data, _distinct_shards(data))


def _check_array(value: object, where: str) -> None:
    if not isinstance(value, jax.Array):
        raise build(
            ShapeError,
            where=where,
            given=f"{type(value).__name__}: {str(value)[:60]!r}",
            rule="the values are taken out of a jax.Array",
            advice="pass the result of to_global or of a jitted function; a NumPy value on this"
            " process is host-local already",
        )


def _no_numpy(keys: jax.Array, where: str) -> ShapeError:
    return build(
        ShapeError,
        where=where,
        given=f"PRNG keys of dtype {keys.dtype}, wanted in NumPy",
        rule="NumPy has no dtype for keys",
        advice="take jax.random.key_data(keys) first, or to_local(keys) for keys on devices",
    )


def _distinct_shards(array: jax.Array) -> dict[Bounds, Any]:
    """This process's shards by where they lie, replicas once."""
    return {bounds(shard.index, array.shape): shard for shard in array.addressable_shards}


def _covers(array: jax.Array, shards: dict[Bounds, Any]) -> bool:
    # Distinct shards do not overlap: JAX cuts every dimension evenly.
    return sum(shard.data.size for shard in shards.values()) == array.size


def _elsewhere(array: jax.Array, shards: dict[Bounds, Any]) -> ShapeError:
    indices = array.sharding.devices_indices_map(array.shape).values()
    every = {bounds(index, array.shape) for index in indices}
    missing = sorted(every - set(shards))
    return build(
        ShapeError,
        where=f"to_numpy on process {jax.process_index()}",
        given=f"a global array of shape {array.shape} and sharding {array.sharding}",
        rule=f"{len(missing)} of its {len(every)} distinct shards are on no device of this process:"
        f" {abridged(missing)}",
        advice="gather it with allgather (this communicates), or take this process's part with"
        " to_local",
    )


def _trace_to_local(leaf: Any, sharding: NamedSharding | None) -> Any:
    if sharding is None:
        raise build(
            SpecError,
            where="leaf",
            given="a value under a JAX transformation, without mesh and specs",
            rule="its own layout is not known there",
            advice="pass mesh and specs to to_local",
        )
    return _transforms.to_local_p.bind(leaf, sharding=sharding, added=True)


def _reshard(leaf: jax.Array, sharding: NamedSharding) -> jax.Array:
    try:
        return jax.device_put(leaf, sharding)
    except ValueError as error:
        raise build(
            SpecError,
            where="leaf",
            given=f"an array of shape {leaf.shape} and sharding {leaf.sharding}, wanted as"
            f" {sharding}",
            rule=f"JAX does not reshard between these: {str(error).partition(chr(10))[0][:300]}",
            advice="give the array's own mesh and spec, or move it with hostmesh.reshard before",
        ) from error


def _missing(plan: Plan) -> ShapeError:
    missing = [bounds(plan.global_index(c), plan.global_shape) for c in plan.missing()]
    return build(
        ShapeError,
        where="leaf",
        given=f"a global array of shape {plan.global_shape}",
        rule=f"the host-local value of process {plan.process} is of shape {plan.local_shape()}, and {len(missing)} of its"
        f" chunks are on none of its devices: {abridged(missing)}",
        advice="pass fetch_missing=True on all processes of its mesh (this communicates), or reshard"
        " to a spec whose chunks are a full product on each process",
    )
