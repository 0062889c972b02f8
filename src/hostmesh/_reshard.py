"""Global arrays from one layout to any other: of the same mesh, another one, other processes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding

from . import _jax, _recipes, _staging, _values
from ._check import layout_in_words, sharding_in_words
from ._convert import mesh_for, processes_of, sharding_for
from ._coordination import agree
from ._errors import HostmeshError, ShapeError, SpecError, at, build
from ._moves import Moves, in_words, sender, telling_members
from ._packing import key_data
from ._plan import Chunk, Index, Plan, Shape, bounds
from ._trees import Matched, Tree


def reshard(arrays: Tree, mesh: Mesh | None, specs: Tree, *, timeout: float | None = None) -> Tree:
    """Moves global arrays to another layout: of any mesh, of the same or other processes.

    Between layouts of the same devices XLA moves the values, where its program does not gather
    them. Otherwise each process sends the pieces of its shards to those that need them, each once,
    through host memory and in parts of at most `config.part_bytes`. What a process holds beside
    the arrays and the results is a few parts, and on accelerators a copy of its shards.

    All processes of the old and the new meshes take part. Others may make the call as well, and get
    arrays without addressable shards.

    Args:
      arrays: a pytree of global `jax.Array`s, each with a `NamedSharding`. A process without
        devices in its mesh may pass a `jax.ShapeDtypeStruct` with shape, dtype and sharding.
      mesh: the new mesh; `None` takes that of the context, as in `to_global`.
      specs: the new `PartitionSpec`s or `NamedSharding`s, one for all or a prefix pytree.
      timeout: seconds to wait for the others; by default `config.timeout`.

    Returns:
      The pytree with a global array for each leaf, of the same values, in the new layout.

    Raises:
      SpecError, ShapeError: for a leaf that is no such array, and a spec that does not fit it.
      DivergenceError, StragglerError, ClusterError: on all processes that take part, where they do
        not make the same call, one does not come, or fails.

    >>> import jax, numpy as np, hostmesh
    >>> from jax.sharding import Mesh, PartitionSpec as P
    >>> mesh = Mesh(jax.devices(), "x")
    >>> x = hostmesh.replicate(np.arange(2 * jax.device_count()), mesh)
    >>> hostmesh.reshard(x, mesh, P("x")).addressable_shards[0].data.shape
    (2,)
    """
    members = _members(arrays, mesh, specs)
    moves = Moves()
    layouts: list[str] = []
    finishers: list[Callable[[], jax.Array]] = []
    with telling_members("reshard", members):
        matched = Matched(arrays, specs, "reshard", "specs")
        mesh = mesh_for(mesh, matched.items, "reshard")
        try:
            for number, (leaf, spec) in enumerate(zip(matched.leaves, matched.items, strict=True)):
                target = sharding_for(mesh, spec)
                data, key = _data_of(leaf, target)
                layouts.append(f"{layout_in_words(data)} to {sharding_in_words(target)}")
                finishers.append(_begin(moves, number, data, target, members, key))
        except HostmeshError as error:
            path = matched.path(len(finishers))
            where = f"{f'leaf {path}' if path else 'value'} on process {jax.process_index()}"
            raise at(error, f"{where} (reshard)") from error.__cause__
    if jax.process_index() not in members:
        return matched.rebuild(_finished(finishers))
    what = in_words("reshard", layouts)
    agreed = agree(what, data=moves.needs(), moves=True, processes=members, timeout=timeout)
    with agreed.turn():
        moves.run(agreed)
        return matched.rebuild(_finished(finishers))


def _finished(finishers: Sequence[Callable[[], jax.Array]]) -> list[Any]:
    with jax.enable_x64(True):  # arrays keep their dtypes, whatever the mode is now
        return [finish() for finish in finishers]


# An array, or what a process without devices in its mesh knows of it.
Source: TypeAlias = jax.Array | jax.ShapeDtypeStruct


def _members(arrays: Tree, mesh: Mesh | None, specs: Tree) -> tuple[int, ...]:
    """The processes of all layouts, old and new, as far as they can be told before all is checked."""
    leaves = [x for x in jax.tree.leaves(arrays) if isinstance(x, Source)]
    old = {leaf.sharding for leaf in leaves if not isinstance(leaf, Tracer)}
    held = {d.process_index for s in old if isinstance(s, NamedSharding) for d in s.device_set}
    return tuple(sorted(held | set(processes_of(mesh, specs))))


def _data_of(leaf: Any, target: NamedSharding) -> tuple[Source, str]:
    """The data of a leaf, and the name of their implementation where it is of keys."""
    if isinstance(leaf, Tracer) or not isinstance(leaf, Source):
        given = "a traced value" if isinstance(leaf, Tracer) else type(leaf).__name__
        rule, kind = "what is moved is a jax.Array with values", ShapeError
    elif not isinstance(leaf.sharding, NamedSharding):
        given = f"an array of sharding {leaf.sharding}"
        rule, kind = "arrays are moved from one mesh to another: by NamedSharding", SpecError
    elif isinstance(leaf, jax.ShapeDtypeStruct) and leaf.sharding.addressable_devices:
        given = f"a jax.ShapeDtypeStruct of shape {leaf.shape}"
        rule = (
            "it stands for an array of which this process holds nothing, but it has devices there"
        )
        kind = ShapeError
    else:
        _recipes.check_rank(target, len(leaf.shape))
        if not _values.is_key(leaf.dtype):
            return leaf, ""
        if isinstance(leaf, jax.Array):
            return key_data(leaf)
        data, key = _values.key_data_shape(leaf)
        return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=leaf.sharding), str(key)
    raise build(
        kind,
        where="leaf",
        given=given,
        rule=rule,
        advice="make a global array of it first, with to_global or replicate",
    )


def _begin(
    moves: Moves,
    number: int,
    data: Source,
    target: NamedSharding,
    members: tuple[int, ...],
    key: str,
) -> Callable[[], jax.Array]:
    """Notes what is to be moved of an array; what is returned makes the result after that."""
    make = _way(moves, number, data, target, members)
    return (lambda: jax.random.wrap_key_data(make(), impl=key)) if key else make


def _way(
    moves: Moves, number: int, data: Source, target: NamedSharding, members: tuple[int, ...]
) -> Callable[[], jax.Array]:
    source, dtype = data.sharding, np.dtype(data.dtype)
    assert isinstance(source, NamedSharding)
    recipe = _recipes.inward(target, None, dtype, data.shape, True)
    if isinstance(data, jax.Array) and data.is_fully_addressable and len(members) == 1:
        return lambda: jax.device_put(data, target)
    if _devices(source) == _devices(target):
        if source.is_equivalent_to(target, len(data.shape)):
            parts = _jax.parts_by_device(data) if isinstance(data, jax.Array) else {}
            return lambda: _jax.assemble(recipe.aval, target, list(parts.values()))
        program = _program(source, target, data.shape, dtype)
        if program is not None and isinstance(data, jax.Array):
            return lambda: program(data)
    return _by_pieces(moves, number, data, recipe)


def _devices(sharding: NamedSharding) -> tuple[Any, ...]:
    return tuple(_recipes.mesh_of(sharding).devices.flat)


@functools.lru_cache(maxsize=256)
def _program(
    source: NamedSharding, target: NamedSharding, shape: Shape, dtype: np.dtype[Any]
) -> Callable[[jax.Array], jax.Array] | None:
    """XLA's program between layouts of the same devices; `None` where it gathers, or cannot be."""
    bits = _bits_of(dtype)
    if not source.addressable_devices or bits < 8:
        return None  # JAX takes no array of which elements share a byte into a compiled program

    def move(x: jax.Array) -> jax.Array:
        if bits > 16 or not jnp.issubdtype(dtype, jnp.floating):
            return x
        # XLA's CPU collectives widen small floats, and so change NaNs.
        words = jax.lax.bitcast_convert_type(x, f"uint{bits}")
        here = jax.lax.with_sharding_constraint(words, source)
        there = jax.lax.with_sharding_constraint(here, target)
        return jax.lax.bitcast_convert_type(there, dtype)

    with jax.enable_x64(True), jax.set_mesh(_recipes.mesh_of(target)):  # whatever the user has set
        argument = jax.ShapeDtypeStruct(shape, dtype, sharding=source)
        compiled = jax.jit(move, out_shardings=target).lower(argument).compile()
    sizes: Any = compiled.memory_analysis()
    if sizes is None:
        return None
    held = sizes.argument_size_in_bytes + sizes.output_size_in_bytes
    return compiled if sizes.temp_size_in_bytes <= 2 * held else None


def _bits_of(dtype: np.dtype[Any]) -> int:
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.iinfo(dtype).bits
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.finfo(dtype).bits
    return 8 * dtype.itemsize


def _by_pieces(
    moves: Moves, number: int, data: Source, recipe: _recipes.Inward
) -> Callable[[], jax.Array]:
    """Notes the pieces that go from old chunks to new ones, and copies those that stay here."""
    me, new = jax.process_index(), recipe.plan
    source, dtype = data.sharding, recipe.dtype
    assert isinstance(source, NamedSharding)
    old = _recipes.outward(source, data.shape, dtype).plan
    parts = _jax.parts_by_device(data) if isinstance(data, jax.Array) else {}
    held = {p.chunk: parts[_devices(source)[p.position]] for p in old.placements()}
    owned = {chunk: _staging.buffer(new.shard_shape, dtype) for chunk in new.chunks()}
    for chunk, part in held.items():
        values = _jax.fetch(part)
        for other, here, there in _overlaps(old, chunk, new):
            for process in new.holders(other):
                if _sender(old, chunk, process) != me:
                    continue
                if process == me:
                    owned[other][there] = values[here]
                else:
                    moves.send(process, (number, chunk, other), values[here])
    for other, values in owned.items():
        for chunk, there, _ in _overlaps(new, other, old):
            if (process := _sender(old, chunk, me)) != me:
                moves.receive(process, (number, chunk, other), values[there])

    def make() -> jax.Array:
        with _jax.explicit_transfers():
            wanted = [owned[chunk] for chunk in recipe.chunks]
            return _jax.put(recipe.aval, recipe.sharding, wanted, recipe.devices, True)

    return make


def _sender(old: Plan, chunk: Chunk, receiver: int) -> int:
    holders = old.holders(chunk)
    return receiver if receiver in holders else sender(holders, receiver, sum(chunk))


def _overlaps(one: Plan, chunk: Chunk, other: Plan) -> Iterator[tuple[Chunk, Index, Index]]:
    """The chunks of another plan that share elements with a chunk, and where these lie in both."""
    if 0 in one.global_shape:
        return
    place = bounds(one.global_index(chunk), one.global_shape)
    sizes = other.shard_shape
    ranges = [range(a // s, -(-b // s)) for (a, b), s in zip(place, sizes, strict=True)]
    for found in itertools.product(*ranges):
        here: list[slice] = []
        there: list[slice] = []
        for (a, b), size, number in zip(place, sizes, found, strict=True):
            low, high = max(a, number * size), min(b, (number + 1) * size)
            here.append(slice(low - a, high - a))
            there.append(slice(low - number * size, high - number * size))
        yield found, tuple(here), tuple(there)
