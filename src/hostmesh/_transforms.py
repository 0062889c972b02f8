"""`jax.grad`, `vjp`, `jvp` and `vmap` through the conversions, which are linear.

Let E_p take the chunks of process p out of a global array. Two conventions fix all derivatives:

* A global array is one value. Where several processes hold a chunk, all pass the same values to
  `to_global`, as one variable: x_p = E_p g. The derivative of a loss L(g) with respect to that
  variable is E_p dL/dg on each process: the transpose of `to_global` is `to_local`.
* Host-local losses add up: with y_p = E_p g and the loss sum_p f_p(y_p), the derivative is
  dL/dg = sum_p E_p^T df_p/dy_p. The transpose of `to_local` is `to_global` with a sum over the
  processes that hold a chunk (not over replicas within a process, which holds y_p once).

Each convention's pair of operations is closed under transposition, so second derivatives are right.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from . import _jax, _recipes
from ._errors import SpecError, build
from ._plan import Chunk, Shape, plan

# x; sharding, global_shape, add: host-local -> global. `add` sums over the processes of a chunk.
to_global_p = _jax.primitive("hostmesh_to_global")
# x; sharding, added: global -> host-local. `added`: its transpose adds, by the second convention.
to_local_p = _jax.primitive("hostmesh_to_local")


def define(to_global: Callable[..., jax.Array], to_local: Callable[..., jax.Array]) -> None:
    """Gives the primitives what they do to concrete arrays."""
    to_global_p.def_impl(to_global)
    to_local_p.def_impl(to_local)


def add_over_processes(
    x: jax.Array, sharding: NamedSharding, global_shape: Shape | None
) -> jax.Array:
    """The global array that is, in each chunk, the sum of what the chunk's processes pass.

    Communicates where processes share chunks: it must then be called on all processes of the mesh.
    """
    recipe = _recipes.inward(sharding, x.shape, x.dtype, global_shape, x64=True)
    values = np.asarray(jax.device_get(x))
    layout, mesh = recipe.plan, sharding.mesh
    # Each process adds its value once: on its first device for the chunk, zeros on the others. The
    # replicas of a chunk lie along the mesh axes that cut nothing; a sum over those is all.
    along = tuple(name for name in mesh.axis_names if not any(name in cut for cut in layout.axes))
    stacked = NamedSharding(mesh, PartitionSpec(along, *sharding.spec))
    parts: list[jax.Array] = []
    seen: set[Chunk] = set()
    for device, chunk, index in zip(recipe.devices, recipe.chunks, recipe.indices, strict=True):
        part = np.zeros_like(values[index]) if chunk in seen else values[index]
        seen.add(chunk)
        parts.append(jax.device_put(part[np.newaxis], device))
    copies = math.prod(mesh.shape[name] for name in along)
    aval = ShapedArray((copies, *layout.global_shape), x.dtype)
    return _sum_first(sharding)(_jax.assemble(aval, stacked, parts))


@functools.lru_cache(maxsize=256)
def _sum_first(sharding: NamedSharding) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(lambda x: jnp.sum(x, axis=0, dtype=x.dtype), out_shardings=sharding)


def _global_aval(x: Any, *, sharding: NamedSharding, global_shape: Shape | None, add: bool) -> Any:
    del add
    layout = plan(
        _recipes.mesh_of(sharding),
        sharding.spec,
        local_shape=x.shape,
        global_shape=global_shape,
        process=jax.process_index(),
    )
    return ShapedArray(layout.global_shape, x.dtype)


def _local_aval(x: Any, *, sharding: NamedSharding, added: bool) -> Any:
    del added
    process = jax.process_index()
    layout = plan(_recipes.mesh_of(sharding), sharding.spec, global_shape=x.shape, process=process)
    return ShapedArray(layout.local_shape() or (), x.dtype)


def _transpose_to_global(
    ct: Any, x: Any, *, sharding: NamedSharding, global_shape: Shape | None, add: bool
) -> tuple[Any]:
    del x, global_shape
    return (to_local_p.bind(ct, sharding=sharding, added=add),)


def _transpose_to_local(ct: Any, x: Any, *, sharding: NamedSharding, added: bool) -> tuple[Any]:
    shape = x.aval.shape
    return (to_global_p.bind(ct, sharding=sharding, global_shape=shape, add=added),)


def _batch_to_global(
    args: Any, dims: Any, *, sharding: NamedSharding, global_shape: Shape | None, add: bool
) -> tuple[Any, int]:
    (x,), (dim,) = args, dims
    wider = _with_dimension(sharding, dim)
    shape = None
    if global_shape is not None:
        shape = (*global_shape[:dim], x.shape[dim], *global_shape[dim:])
    return to_global_p.bind(x, sharding=wider, global_shape=shape, add=add), dim


def _batch_to_local(
    args: Any, dims: Any, *, sharding: NamedSharding, added: bool
) -> tuple[Any, int]:
    (x,), (dim,) = args, dims
    return to_local_p.bind(x, sharding=_with_dimension(sharding, dim), added=added), dim


def _with_dimension(sharding: NamedSharding, dim: int) -> NamedSharding:
    """The sharding of an array with one more dimension, which nothing cuts."""
    entries = list(sharding.spec) + [None] * max(0, dim - len(sharding.spec))
    return NamedSharding(sharding.mesh, PartitionSpec(*entries[:dim], None, *entries[dim:]))


def _refuse_jit(ctx: Any, *_: Any, **__: Any) -> Any:
    name = ctx.primitive.name.removeprefix("hostmesh_")
    raise build(
        SpecError,
        where=f"{name} under jax.jit",
        given="a traced value",
        rule="inside jit every array is global already; host-local values exist outside only",
        advice="call to_global on the arguments before the jitted function and to_local on its"
        " results after it; inside, use jax.lax.with_sharding_constraint or jax.shard_map",
    )


to_global_p.def_abstract_eval(_global_aval)
to_local_p.def_abstract_eval(_local_aval)
ad.deflinear2(to_global_p, _transpose_to_global)
ad.deflinear2(to_local_p, _transpose_to_local)
batching.primitive_batchers[to_global_p] = _batch_to_global
batching.primitive_batchers[to_local_p] = _batch_to_local
mlir.register_lowering(to_global_p, _refuse_jit)
mlir.register_lowering(to_local_p, _refuse_jit)
