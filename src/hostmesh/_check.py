"""Checks that processes hold the same: host-local values, and the replicas of global arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
import xxhash
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding

from . import _jax, _recipes
from ._compare import CLAUSE, Claim, Item, Name, Subject, digests, require_equal
from ._coordination import members_of, telling
from ._errors import SpecError, build
from ._kinds import Kind
from ._packing import host_array, key_data
from ._plan import Chunk, Plan, Shape, abridged, bounds
from ._trees import Matched, Tree

_NAN = ("bits", "equal", "unequal")


def assert_equal(
    tree: Tree,
    *,
    name: str = "",
    nan: str = "bits",
    processes: Sequence[int] | None = None,
    timeout: float | None = None,
) -> None:
    """Raises on all processes where they do not hold the same values.

    Communicates a digest of each process in one round trip, whatever the size of the values. Only
    where digests differ are values compared, block by block.

    Args:
      tree: NumPy arrays, `jax.Array`s on this process, replicated global arrays, keys and numbers,
        which should be the same on all processes.
      name: what the values are, in words, for errors.
      nan: `"bits"` compares all values by their bits: a NaN equals one of the same bits, and -0.0
        is not 0.0. `"equal"` compares floats by value, and NaNs as equal. `"unequal"` compares
        them by value, and NaN with nothing as equal: JAX's rule.
      processes: those that take part; by default all.
      timeout: seconds to wait for them; by default `config.timeout`.

    Raises:
      DivergenceError: where values differ, with the leaf, the processes that differ from most, the
        first index where they do, both values there, how many elements differ and by how much at
        most. It also tells of another structure, dtype or shape.
      StragglerError, ClusterError: where a process does not come, or fails.

    It reads the values once, in place. A leaf on an accelerator comes to the host meanwhile.

    >>> import hostmesh, jax
    >>> hostmesh.assert_equal({"seed": 3, "processes": jax.process_count()})
    """
    where = f"assert_equal {name!r}" if name else "assert_equal"
    with telling(where, processes=processes):
        if nan not in _NAN:
            raise build(
                SpecError,
                where=where,
                given=f"nan={nan!r}",
                rule=f"it is one of {_NAN}",
                advice="leave it out to compare bits",
            )
        members = members_of(processes, where)
        claim = claim_of_tree(
            tree,
            "assert_equal",
            members,
            advice="make the values from the same data and seed on all processes, or take one"
            " process's with broadcast",
            nan=nan,
        )
        own = digests(claim)
    require_equal(where, claim, own, members, timeout)


def claim_of_tree(
    tree: Tree, function: str, members: tuple[int, ...], advice: str, nan: str = "bits"
) -> Claim:
    """The claim that all members hold the values of a tree."""
    leaves, structure = jax.tree.flatten(tree)
    kinds: list[Kind] = []
    items: list[Item] = []
    for number, leaf in enumerate(leaves):
        kind, values = reader(leaf, tree, number, function)
        kinds.append(kind)
        items.append(Item((number,), members, values))
    return claim_of_items(tree, structure, kinds, items, advice, nan)


def claim_of_items(
    tree: Tree,
    structure: Any,
    kinds: Sequence[Kind],
    items: Sequence[Item],
    advice: str,
    nan: str = "bits",
) -> Claim:
    """The claim of some items that are whole leaves of a tree."""

    def lines() -> list[tuple[str, str]]:
        shown = [f"{label(tree, number)}: {kind}" for number, kind in enumerate(kinds)]
        return [*((line, line) for line in shown), (str(structure), str(structure)[:300])]

    def subject(name: Name) -> Subject:
        kind = kinds[name[0]]
        return Subject(f"{label(tree, name[0])} of {kind}", kind, (0,) * len(kind.shape))

    layout = f"{structure} {' '.join(map(str, kinds))}"
    rule = "all processes hold the same " + ("bits" if nan == "bits" else f"values, NaNs {nan}")
    return Claim(items, layout, lines, subject, rule, advice, nan)


def label(tree: Tree, number: int) -> str:
    """A leaf by its key path, in words."""
    path = jax.tree_util.keystr(jax.tree_util.tree_leaves_with_path(tree)[number][0])
    return f"leaf {path}" if path else "the value"


def reader(
    leaf: Any, tree: Tree, number: int, function: str
) -> tuple[Kind, Callable[[], npt.NDArray[Any]]]:
    """What a leaf is, and how to read it: in place where it lies in memory in one piece."""
    if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer):
        data, key = key_data(leaf)
        if data.is_fully_replicated and (parts := list(_jax.parts_by_device(data).values())):
            kind = Kind(np.dtype(data.dtype).name, data.shape, key)
            return kind, functools.partial(_jax.fetch, parts[0])
    array, key = host_array(leaf, tree, number, function)
    return Kind(array.dtype.name, array.shape, key), lambda: array


def check_global(
    level: str,
    local: Tree,
    matched: Matched,
    arrays: Sequence[jax.Array],
    processes: tuple[int, ...],
    name: str,
) -> None:
    """Checks between the processes of their meshes that global arrays are of one piece.

    `level` is "shapes", or "replicas": then also that what several processes hold is the same.
    """
    datas = [key_data(array)[0] for array in arrays]
    plans = [_recipes.outward(_named(data), data.shape, data.dtype).plan for data in datas]
    structure = jax.tree.structure(local)

    def name_of(number: int) -> str:
        path = matched.path(number)
        return f"leaf {path}" if path else "the value"

    def lines() -> list[tuple[str, str]]:
        shown: list[tuple[str, str]] = []
        for number, (leaf, array) in enumerate(zip(matched.leaves, arrays, strict=True)):
            line = f"{name_of(number)}: {layout_in_words(array)}"
            named = _named(array)
            clauses = (
                f"{name_of(number)}:",
                f"{array.dtype}{list(array.shape)} of local shape {np.shape(leaf)}",
                f"by {named.spec}",
                f"on {_mesh_in_words(_recipes.mesh_of(named))}",
            )
            shown.append((line, CLAUSE.join(clauses)))
        return [*shown, (str(structure), str(structure)[:300])]

    def subject(name: Name) -> Subject:
        number, *chunk = name
        plan = plans[number]
        kind = Kind(np.dtype(datas[number].dtype).name, plan.shard_shape)
        place = bounds(plan.global_index(tuple(chunk)), plan.global_shape)
        along = _replicating_axes(plan)
        words = f"{name_of(number)}, chunk {abridged([place])} of {kind}, replicated along {along}"
        return Subject(words, kind, tuple(start for start, _ in place))

    items = [
        item
        for number, (plan, data) in enumerate(zip(plans, datas, strict=True))
        if level == "replicas" and plan.is_replicated
        for item in _replicas(number, plan, data)
    ]
    claim = Claim(
        items,
        f"{structure} {' '.join(map(layout_in_words, arrays))}",
        lines,
        subject,
        "what the spec replicates is the same on all processes that hold it",
        "pass the same values there (of one seed, or another process's by hostmesh.broadcast), or cut"
        " them by the axis along which they differ",
    )
    with telling(name, processes=processes):
        own = digests(claim)
    require_equal(name, claim, own, processes, timeout=None)


def _replicas(number: int, plan: Plan, data: jax.Array) -> list[Item]:
    """The chunks of an array that this process holds and others too."""
    parts = _jax.parts_by_device(data)
    return [
        Item((number, *chunk), holders, functools.partial(_jax.fetch, parts[device]))
        for chunk, holders, device in _shared_chunks(_recipes.mesh_of(_named(data)), plan)
    ]


@functools.lru_cache(maxsize=1024)
def _shared_chunks(mesh: Mesh, plan: Plan) -> list[tuple[Chunk, tuple[int, ...], Any]]:
    """Chunks of this process that others hold too: all who hold each, and a device here."""
    devices = mesh.devices.reshape(-1)
    on = {placement.chunk: devices[placement.position] for placement in plan.placements()}
    held = ((chunk, plan.holders(chunk), device) for chunk, device in sorted(on.items()))
    return [(chunk, holders, device) for chunk, holders, device in held if len(holders) > 1]


def _replicating_axes(plan: Plan) -> str:
    """The mesh axes along which processes hold the same, in words."""
    cutting = {name for cut in plan.axes for name in cut}
    owners = plan.topology.process_indices
    names = [
        repr(name)
        for axis, (name, _) in enumerate(plan.topology.axes)
        if name not in cutting and (owners.min(axis=axis) != owners.max(axis=axis)).any()
    ]
    return f"mesh {'axis' if len(names) == 1 else 'axes'} {', '.join(names)}"


def _named(array: jax.Array | jax.ShapeDtypeStruct) -> NamedSharding:
    assert isinstance(array.sharding, NamedSharding)
    return array.sharding


def layout_in_words(array: jax.Array | jax.ShapeDtypeStruct) -> str:
    """Dtype, shape, spec and mesh of a global array."""
    return _layout_in_words(_named(array), array.shape, array.dtype)


@functools.lru_cache(maxsize=8192)
def _layout_in_words(sharding: NamedSharding, shape: Shape, dtype: Any) -> str:
    return f"{dtype}{list(shape)} by {sharding_in_words(sharding)}"


def sharding_in_words(sharding: NamedSharding) -> str:
    """Spec and mesh."""
    return f"{sharding.spec} on {_mesh_in_words(_recipes.mesh_of(sharding))}"


@functools.lru_cache(maxsize=64)
def _mesh_in_words(mesh: Mesh) -> str:
    ids = [str(device.id) for device in mesh.devices.flat]
    shape = ", ".join(f"{name}={size}" for name, size in mesh.shape.items())
    if len(ids) > 8:
        ids[4:] = ["...", "digest", xxhash.xxh3_64_hexdigest(" ".join(ids).encode())]
    return f"mesh ({shape}) of devices {' '.join(ids)}"
