"""Host-local values to replicated global arrays: checked to be equal, or taken from one process."""

from __future__ import annotations

from typing import Any

import jax
import msgpack
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, PartitionSpec

from . import _jax, _recipes, _staging, _transport, _values
from ._check import claim_of_items, label, reader
from ._collectives import require_same_trees, unknown_types
from ._compare import Item, digests, require_equal
from ._convert import mesh_for, processes_of, sharding_for
from ._coordination import agree, rank_of, telling
from ._errors import HostmeshError, SpecError, at, build
from ._kinds import Kind, length_of, pack_kinds, unpack_kinds
from ._packing import describe, is_inline, pack, plain_structure, structure_of
from ._stream import Stream, joined
from ._trees import Tree

HostArray = npt.NDArray[Any]


def replicate(
    value: Tree,
    mesh: Mesh | None,
    *,
    source: int | None = None,
    timeout: float | None = None,
) -> Tree:
    """Makes replicated global arrays of values that all processes have, or that one has.

    Without `source` all processes of the mesh pass the values, and digests show in one round trip
    that they are the same. With it, the values of that process are sent to the others, straight
    into the memory that their devices take. The processes of the mesh and the source take part;
    others may make the call as well, and get arrays without addressable shards.

    Args:
      value: a pytree of NumPy arrays, `jax.Array`s on this process, replicated global arrays, keys
        and numbers. With `source` the others pass a tree of the same structure, dtypes and shapes
        (`jax.ShapeDtypeStruct`s will do: values are not read), or `None`.
      mesh: the mesh; `None` takes that of the context, as in `to_global`.
      source: the process whose values all get.
      timeout: seconds to wait for the others; by default `config.timeout`.

    Returns:
      The pytree with a global array of the value's shape for each leaf, on every device of the
      mesh. It shares no memory with the value. Each process holds one copy beside the value.

    Raises:
      DivergenceError: where processes pass different values, structures, dtypes or shapes; it says
        which leaf differs where, as `assert_equal` does.
      StragglerError, ClusterError: where a process does not come, or fails.
      SpecError, ShapeError: for a mesh, source or leaf that cannot be.

    >>> import jax, numpy as np, hostmesh
    >>> mesh = jax.sharding.Mesh(jax.devices(), "x")
    >>> hostmesh.replicate({"w": np.arange(3)}, mesh)["w"].is_fully_replicated
    True
    """
    name = "replicate" if source is None else f"replicate(source={source})"
    sources = () if source is None else (source,)
    members = tuple(sorted({*processes_of(mesh, ()), *sources} & {*range(jax.process_count())}))
    if jax.process_index() not in members and members:
        place = _place(mesh)
        kinds = [_kind_of(leaf, value, n) for n, leaf in enumerate(jax.tree.leaves(value))]
        return jax.tree.unflatten(jax.tree.structure(value), [place(kind, None) for kind in kinds])
    if source is not None:
        return _from_source(value, mesh, source, name, members, timeout)
    with telling(name, processes=members or None):
        place = _place(mesh)
        leaves, structure = jax.tree.flatten(value)
        copies = [_copy(leaf, value, number) for number, leaf in enumerate(leaves)]
        items = [
            Item((number,), members, lambda array=array: array)
            for number, (_, array) in enumerate(copies)
        ]
        kinds = [kind for kind, _ in copies]
        advice = "make it equal, or pass source= to take one process's value"
        claim = claim_of_items(value, structure, kinds, items, advice)
        own = digests(claim)
    require_equal(name, claim, own, members, timeout)
    return jax.tree.unflatten(structure, [place(kind, array) for kind, array in copies])


def _from_source(
    value: Tree,
    mesh: Mesh | None,
    source: int,
    name: str,
    members: tuple[int, ...],
    timeout: float | None,
) -> Tree:
    is_source = jax.process_index() == source
    with telling(name, processes=members or None):
        root = rank_of(source, members, name)
        if is_source and value is None:
            raise _no_value(name, source)
        place = _place(mesh)
        leaves, structure = jax.tree.flatten(value)
        arrays: list[HostArray] = []
        message = b""
        if is_source:
            copies = [_copy(leaf, value, number) for number, leaf in enumerate(leaves)]
            kinds, arrays = [kind for kind, _ in copies], [array for _, array in copies]
            inline = joined(arrays) if is_inline(length_of(kinds), 1) else b""
            head = describe(str(structure), kinds)
            message = pack((head, plain_structure(structure), pack_kinds(kinds), inline))
        elif value is not None:
            kinds = [_kind_of(leaf, value, number) for number, leaf in enumerate(leaves)]
            message = pack((describe(str(structure), kinds),))
    agreed = agree(name, data=message, moves=True, processes=members, timeout=timeout)
    heads = [msgpack.unpackb(data)[0] if data else None for data in agreed.data]
    head, plain, packed, inline = msgpack.unpackb(agreed.data[root])
    with agreed.turn():
        require_same_trees(name, agreed, root, heads)
        if None in heads and not plain:
            raise unknown_types(name, members[heads.index(None)], head)
        if value is None:
            structure = structure_of(plain)
        kinds = unpack_kinds(packed)
        if not is_source:
            arrays = [_staging.buffer(kind.shape, np.dtype(kind.dtype)) for kind in kinds]
        nbytes = length_of(kinds)
        stream = Stream(arrays)
        fill, take = None, _transport.by_rank(lambda _, row, start: stream.write(row, start))
        if is_source:
            fill, take = stream.read, _transport.ignore
        if is_inline(nbytes, 1):
            take(np.frombuffer(inline, np.uint8)[None], 0)
        else:
            _transport.broadcast(nbytes, members, root, fill, take)
    placed = [place(kind, array) for kind, array in zip(kinds, arrays, strict=True)]
    return jax.tree.unflatten(structure, placed)


def _kind_of(leaf: Any, tree: Tree, number: int) -> Kind:
    """The kind that a leaf has on a device; of a `jax.ShapeDtypeStruct` too."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        if _values.is_key(leaf.dtype):
            data, key = _values.key_data_shape(leaf)
            return Kind(np.dtype(data.dtype).name, data.shape, str(key))
        kind = Kind(np.dtype(leaf.dtype).name, leaf.shape)
    else:
        kind, _ = reader(leaf, tree, number, "replicate")
    dtype = _values.device_dtype(np.dtype(kind.dtype), _values.x64_enabled())
    return Kind(dtype.name, kind.shape, kind.key)


def _copy(leaf: Any, tree: Tree, number: int) -> tuple[Kind, HostArray]:
    """A leaf's kind on a device, and its values in memory of ours that a device can take."""
    kind = _kind_of(leaf, tree, number)
    _, read = reader(leaf, tree, number, "replicate")
    array = _staging.buffer(kind.shape, np.dtype(kind.dtype))
    try:
        _values.convert(read(), array, "leaf")
    except HostmeshError as error:
        raise at(error, f"{label(tree, number)} on process {jax.process_index()}") from None
    return kind, array


def _place(mesh: Mesh | None) -> Any:
    """What puts an array, ours to give up, on every device of the mesh."""
    spec = PartitionSpec()
    sharding = sharding_for(mesh_for(mesh, [spec], "replicate"), spec)

    def place(kind: Kind, array: HostArray | None) -> jax.Array:
        recipe = _recipes.inward(sharding, None, np.dtype(kind.dtype), kind.shape, True)
        # The source's dtype is that of all, whatever the x64 mode is here.
        with jax.enable_x64(True), _jax.explicit_transfers():
            parts = [array] * len(recipe.devices)
            result = _jax.put(recipe.aval, sharding, parts, recipe.devices, True)
        return jax.random.wrap_key_data(result, impl=kind.key) if kind.key else result

    return place


def _no_value(name: str, source: int) -> SpecError:
    return build(
        SpecError,
        where=f"{name} on process {source}",
        given="None on the source itself",
        rule="the source passes the values that all get",
        advice="pass them, or name another source",
    )
