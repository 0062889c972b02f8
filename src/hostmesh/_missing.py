"""Host-local values of global arrays of which this process's devices hold only a part."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from . import _jax
from ._check import layout_in_words
from ._coordination import agree
from ._errors import HostmeshError, SpecError, at, build
from ._moves import HostArray, Moves, in_words, sender, telling_members
from ._outward import laid_out, leaf_to_local
from ._packing import is_global, key_data
from ._recipes import Outward, check_rank, outward
from ._trees import Tree
from ._values import is_key

NAME = "to_local(fetch_missing=True)"


def members_of(arrays: Tree, processes: Sequence[int]) -> tuple[int, ...]:
    """The processes that take part: these, and those of all global arrays. None: all is local."""
    shardings = {leaf.sharding for leaf in jax.tree.leaves(arrays) if is_global(leaf)}
    held = {device.process_index for s in shardings for device in s.device_set}
    return tuple(sorted({*processes, *held}))


def leaves_to_local(
    leaves: Sequence[Any],
    shardings: Sequence[NamedSharding | None],
    numpy: bool,
    members: tuple[int, ...],
    where: Callable[[int], str],
) -> list[Any]:
    """The host-local values of leaves, with what lies on other processes only fetched from those.

    To be called on all `members`, which agree before anything moves.
    """
    if members and jax.process_index() not in members:
        return [leaf_to_local(x, s, numpy) for x, s in zip(leaves, shardings, strict=True)]
    moves = Moves()
    results: list[Any] = []
    layouts: list[str] = []
    incomplete: list[tuple[int, HostArray, Outward]] = []
    with telling_members(NAME, members):
        try:
            for number, (leaf, sharding) in enumerate(zip(leaves, shardings, strict=True)):
                laid = _laid_out(leaf, sharding, numpy)
                if laid is None:
                    results.append(leaf_to_local(leaf, sharding, numpy))
                    continue
                data, sharding = laid
                layouts.append(layout_in_words(data))
                recipe = outward(sharding, data.shape, data.dtype)
                _send(moves, number, data, recipe)
                if recipe.sharding is None and recipe.sources:
                    incomplete.append((number, _receive(moves, number, data, recipe), recipe))
                    results.append(None)
                else:
                    results.append(_like(leaf, leaf_to_local(data, sharding, numpy)))
        except HostmeshError as error:
            raise at(error, where(len(results))) from error.__cause__
    if not members:
        return results  # all host-local already
    what = in_words(NAME, layouts)
    agreed = agree(what, data=moves.needs(), moves=True, processes=members)
    with agreed.turn():
        moves.run(agreed)
    for number, value, recipe in incomplete:
        results[number] = value if numpy else _like(leaves[number], _on_devices(value, recipe))
    return results


def _laid_out(
    leaf: Any, sharding: NamedSharding | None, numpy: bool
) -> tuple[jax.Array, NamedSharding] | None:
    """The data of a leaf in the layout that is wanted; `None` where nothing can be missing."""
    if isinstance(leaf, Tracer):
        raise build(
            SpecError,
            where="leaf",
            given="a traced value, with fetch_missing=True",
            rule="under a JAX transformation nothing is fetched from other processes",
            advice="leave fetch_missing out there, and reshard to a spec whose chunks are a full"
            " product on each process",
        )
    if not isinstance(leaf, jax.Array):
        return None
    data, key = key_data(leaf)
    if key and numpy:
        return None  # an error, which leaf_to_local raises
    if key and sharding is not None:
        check_rank(sharding, leaf.ndim)
    return laid_out(data, sharding, whole=False)


def _like(leaf: jax.Array, data: Any) -> Any:
    """Data as keys again where it is that of keys."""
    if not is_key(leaf.dtype):
        return data
    if isinstance(data, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))


def _send(moves: Moves, leaf: int, array: jax.Array, recipe: Outward) -> None:
    """What other processes miss and this one is to send. Costs time in the whole mesh."""
    layout, parts = recipe.plan, _jax.parts_by_device(array)
    for process in layout.topology.processes:
        for number, chunk in enumerate(layout.missing(process)):
            if sender(layout.holders(chunk), process, number) == layout.process:
                index = layout.local_index(chunk)
                device = next(device for device, at in recipe.sources if at == index)
                moves.send(process, (leaf, chunk), _jax.fetch(parts[device]))


def _receive(moves: Moves, leaf: int, array: jax.Array, recipe: Outward) -> HostArray:
    """The host-local value, in which what is missing is not there until the moves have run."""
    layout, parts = recipe.plan, _jax.parts_by_device(array)
    out = np.empty(recipe.aval.shape, recipe.aval.dtype)
    for device, index in recipe.sources:
        out[index] = _jax.fetch(parts[device])
    for number, chunk in enumerate(layout.missing()):
        process = sender(layout.holders(chunk), jax.process_index(), number)
        moves.receive(process, (leaf, chunk), out[layout.local_index(chunk)])
    return out


def _on_devices(value: HostArray, recipe: Outward) -> jax.Array:
    """A host-local value cut over this process's devices, as evenly as its chunks allow."""
    devices = [device for device, _ in recipe.sources]
    cuts: list[int] = []
    for size, chunk in zip(value.shape, recipe.plan.shard_shape, strict=True):
        most = len(devices) // math.prod(cuts)
        chunks = size // chunk if chunk else 1
        cuts.append(max(n for n in range(1, most + 1) if chunks % n == 0))
    grid = np.array(devices[: math.prod(cuts)]).reshape(cuts)
    names = [f"chunks{i}" for i in range(len(cuts))]
    sharding = NamedSharding(Mesh(grid, names), PartitionSpec(*names))
    places = sharding.devices_indices_map(value.shape)
    with jax.enable_x64(True), _jax.explicit_transfers():
        parts = [value[index] for index in places.values()]
        return _jax.put(recipe.aval, sharding, parts, list(places), True)
