"""Host-local values to global arrays and back: trees, meshes and specs; leaves are elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from . import _jax, _missing, _moments, _recipes, _transforms, _values
from ._check import check_global
from ._config import config
from ._coordination import telling
from ._errors import HostmeshError, ShapeError, SpecError, at, build
from ._inward import leaves_to_global
from ._moves import telling_members
from ._outward import leaf_to_local, leaves_to_local
from ._plan import Shape
from ._trees import Matched, Tree
from ._watch import _marks


def to_global(
    local: Tree,
    mesh: Mesh | None,
    specs: Tree,
    *,
    global_shape: Tree = None,
    check: str | None = "config",
    may_alias: bool = False,
) -> Tree:
    """Makes global arrays of the host-local values that each process passes.

    Along each dimension that the spec cuts, a process passes the chunks that its own devices hold,
    side by side in ascending order: global size = local size x all chunks / own chunks. Any mesh
    will do: contiguous, interleaved, permuted, partial. Nothing is communicated, unless asked for.

    Args:
      local: a pytree of NumPy arrays, `jax.Array`s on this process's devices, PRNG keys, Python
        numbers and lists of them. A process without devices in the mesh passes a
        `jax.ShapeDtypeStruct` of the global shape. Arrays that already are global and of the
        layout that is asked for pass through.
      mesh: the mesh; `None` takes that of `jax.set_mesh` or of the `with mesh:` block.
      specs: a `PartitionSpec` or `NamedSharding` for all leaves, or a pytree of them that is a
        prefix of `local`.
      global_shape: the global shape, one for all leaves or a prefix pytree of shapes. With it, a
        dimension of a leaf may also be given whole; this process's chunks are then cut out of it.
      check: `"shapes"` checks, by an agreement between the processes of the mesh, that structure,
        dtypes, specs, mesh and global shapes are the same on all. `"replicas"` checks besides, by
        digests, that values which the spec replicates are the same on all processes that hold
        them. `None` checks nothing; the default is `hostmesh.config.check`. For traced values the
        default checks nothing either.
      may_alias: gives the buffers of `local` up: a device may take them without a copy, and the
        caller writes to them no more. Otherwise no result shares memory that the caller can write.

    Returns:
      The pytree with a global `jax.Array` for each leaf, sharded by `NamedSharding(mesh, spec)`.

    Raises:
      SpecError: for specs that are none of this mesh or of this pytree; under `jit`.
      ShapeError: for a leaf whose shape, dtype or values do not fit.
      DivergenceError, StragglerError, ClusterError: with `check`, on all processes of the mesh,
        where what they pass does not go together, one does not come, or fails.

    Gradients: where several processes hold a chunk they pass one variable, and its gradient is
    that of the global array, on each of them. `jax.grad`, `vjp`, `jvp` and `vmap` work; the
    mathematics is at the head of `hostmesh/_transforms.py`.

    >>> import jax, numpy as np, hostmesh
    >>> from jax.sharding import Mesh, PartitionSpec as P
    >>> mesh = Mesh(jax.devices(), "x")
    >>> x = hostmesh.to_global(np.arange(4) * jax.process_index(), mesh, P("x"))
    >>> x.shape == (4 * jax.process_count(),)
    True
    """
    _marks.touch()
    level = _level_of(check, local)
    processes = processes_of(mesh, specs) if level else ()
    if level is None or jax.process_index() not in processes:
        matched, results = _converted(local, mesh, specs, global_shape, may_alias)
        return matched.rebuild(results)
    name = f"to_global(check={level!r})"
    with telling(name, processes=processes):
        matched, results = _converted(local, mesh, specs, global_shape, may_alias)
    check_global(level, local, matched, results, processes, name)
    return matched.rebuild(results)


def _converted(
    local: Tree, mesh: Mesh | None, specs: Tree, global_shape: Tree, may_alias: bool
) -> tuple[Matched, list[Any]]:
    local = _moments.passed("to_global", local)
    matched = Matched(local, specs, "to_global", "specs")
    shapes = _shapes_for(local, matched, global_shape)
    mesh = mesh_for(mesh, matched.items, "to_global")
    x64 = _values.x64_enabled()
    shardings = _shardings(matched, mesh, "to_global")
    results: list[Any] = []
    try:
        with _jax.explicit_transfers():
            for array in leaves_to_global(matched.leaves, shardings, shapes, x64, may_alias):
                results.append(array)
    except HostmeshError as error:
        raise at(error, _where("to_global", matched, len(results))) from error.__cause__
    return matched, results


def _level_of(check: str | None, local: Tree) -> str | None:
    """What is to be checked; for traced values nothing, or an error where it is asked for."""
    level = config.check if check == "config" else check
    if level not in (None, "shapes", "replicas"):
        given, rule = f"check={check!r}", "it is None, 'shapes' or 'replicas'"
    elif level and any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(local)):
        if check == "config":
            return None
        given, rule = f"check={check!r} for traced values", "only values can be compared"
    else:
        return level
    raise build(SpecError, where="to_global", given=given, rule=rule, advice="leave check= out")


def processes_of(mesh: Mesh | None, specs: Tree) -> tuple[int, ...]:
    """The processes of the meshes that are meant, as far as they can be told before all is checked."""
    shardings = [spec for spec in jax.tree.leaves(specs) if isinstance(spec, NamedSharding)]
    meshes = {sharding.mesh for sharding in shardings} | {mesh or _jax.mesh_in_context()}
    devices = [d for m in meshes if isinstance(m, Mesh) for d in m.devices.flat]
    return tuple(sorted({device.process_index for device in devices}))


def to_local(
    arrays: Tree,
    mesh: Mesh | None = None,
    specs: Tree = None,
    *,
    numpy: bool = False,
    fetch_missing: bool = False,
) -> Tree:
    """Gives each process its host-local values of global arrays: the inverse of `to_global`.

    Args:
      arrays: a pytree of global `jax.Array`s. An array on this process's devices alone is
        host-local already and stays as it is.
      mesh, specs: the layout whose host-local values are wanted, as in `to_global`; by default
        each array's own, and then nothing is communicated. An array of another layout is resharded
        first, *which communicates*: every process of both layouts must make the same call.
      numpy: gives NumPy arrays that the caller owns and may write, instead of `jax.Array`s on this
        process's devices.
      fetch_missing: fetches chunks of the value that this process holds no device for from those
        that do, *which communicates*: all processes of the mesh make the same call.

    Returns:
      The pytree with a host-local value for each leaf: a `jax.Array` sharded over this process's
      devices (by the spec on `mesh.local_mesh` where these form one rectangle of the mesh), or a
      NumPy array. A process without devices in the mesh gets a `jax.ShapeDtypeStruct` of the
      global shape.

    Raises:
      SpecError: for specs that are none of this mesh, or an array of a layout without a plan.
      ShapeError: for a leaf that is no `jax.Array`, and where this process's devices hold only
        part of its host-local value (on a diagonal layout, say), unless that is fetched.
      DivergenceError, StragglerError, ClusterError: with `fetch_missing`, on all processes of the
        mesh, where they do not make the same call, one does not come, or fails.

    Gradients: the loss is the sum of the processes' losses, so the gradient of a chunk that several
    processes hold is the sum of theirs (which communicates). To differentiate one loss for all,
    let the loss be a global scalar. The mathematics is at the head of `hostmesh/_transforms.py`.

    >>> import jax, numpy as np, hostmesh
    >>> from jax.sharding import Mesh, PartitionSpec as P
    >>> mesh = Mesh(jax.devices(), "x")
    >>> hostmesh.to_local(hostmesh.to_global(np.arange(4), mesh, P("x")), numpy=True)
    array([0, 1, 2, 3], dtype=int32)
    """
    _marks.touch()
    if not fetch_missing:
        matched, shardings = _layouts(arrays, mesh, specs)
        results: list[Any] = []
        try:
            for result in leaves_to_local(matched.leaves, shardings, numpy):
                results.append(result)
        except HostmeshError as error:
            raise at(error, _where("to_local", matched, len(results))) from error.__cause__
        return matched.rebuild(results)
    own_layouts = specs is None and mesh is None
    members = _missing.members_of(arrays, () if own_layouts else processes_of(mesh, specs))
    with telling_members(_missing.NAME, members):
        matched, shardings = _layouts(arrays, mesh, specs)

    def where(leaf: int) -> str:
        return _where("to_local", matched, leaf)

    found = _missing.leaves_to_local(matched.leaves, shardings, numpy, members, where)
    return matched.rebuild(found)


def _layouts(
    arrays: Tree, mesh: Mesh | None, specs: Tree
) -> tuple[Matched, Sequence[NamedSharding | None]]:
    """The layout in which each leaf's host-local value is wanted; `None` for its own."""
    matched = Matched(arrays, specs, "to_local", "specs")
    if specs is None and mesh is None:
        return matched, [None] * len(matched.leaves)
    if specs is None:
        raise build(
            SpecError,
            where="to_local",
            given="a mesh without specs",
            rule="a layout is a mesh with a spec for each array",
            advice="give both, or neither for each array's own layout",
        )
    mesh = mesh_for(mesh, matched.items, "to_local")
    return matched, _shardings(matched, mesh, "to_local")


def _shardings(matched: Matched, mesh: Mesh | None, function: str) -> list[NamedSharding]:
    """The sharding that the spec of each leaf stands for."""
    shardings: list[NamedSharding] = []
    sharding: Any = None
    last: Any = matched  # no spec yet
    try:
        for spec in matched.items:
            if spec is not last:
                sharding, last = sharding_for(mesh, spec), spec
            shardings.append(sharding)
    except HostmeshError as error:
        raise at(error, _where(function, matched, len(shardings))) from error.__cause__
    return shardings


def _is_shape(node: object) -> bool:
    return isinstance(node, tuple | list) and all(isinstance(size, int) for size in node)


def _shapes_for(local: Tree, matched: Matched, global_shape: Tree) -> Sequence[Shape | None]:
    if global_shape is None:
        return [None] * len(matched.leaves)
    shapes = Matched(local, global_shape, "to_global", "global_shape", _is_shape).items
    for shape in shapes:
        if shape is not None and not _is_shape(shape):
            raise build(
                ShapeError,
                where="to_global",
                given=f"global_shape {shape!r}",
                rule="a global shape is a tuple of whole numbers",
                advice="give one for all leaves, or a prefix pytree of them",
            )
    return [None if shape is None else tuple(shape) for shape in shapes]


def mesh_for(mesh: Mesh | None, specs: Sequence[Any], function: str) -> Mesh | None:
    """The mesh that was given, or that of the context where a spec needs one."""
    if mesh is not None:
        if isinstance(mesh, Mesh):  # pyright: ignore[reportUnnecessaryIsInstance]
            return mesh
        raise build(
            SpecError,
            where=function,
            given=f"mesh of type {type(mesh).__name__}",
            rule="values are placed on the devices of a jax.sharding.Mesh",
            advice="pass the mesh itself",
        )
    if all(isinstance(spec, NamedSharding) for spec in specs):
        return None
    if (mesh := _jax.mesh_in_context()) is None:
        raise build(
            SpecError,
            where=function,
            given="mesh=None",
            rule="no mesh is set: neither jax.set_mesh nor a 'with mesh:' block is in force here",
            advice="pass the mesh, call jax.set_mesh(mesh), or give NamedShardings as specs",
        )
    return mesh


def sharding_for(mesh: Mesh | None, spec: Any) -> NamedSharding:
    """The sharding that one item of a tree of specs stands for."""
    if isinstance(spec, NamedSharding):
        _recipes.sharding_for(
            _recipes.mesh_of(spec), spec.spec
        )  # a check: what it has beside stays
        return spec
    if isinstance(spec, PartitionSpec) and mesh is not None:
        return _recipes.sharding_for(mesh, spec)
    raise build(
        SpecError,
        where="leaf",
        given=f"spec {spec!r}",
        rule="a spec is a jax.sharding.PartitionSpec or NamedSharding; None says nothing of a"
        " layout",
        advice="write PartitionSpec() to replicate a value on every device",
    )


def _where(function: str, matched: Matched, leaf: int) -> str:
    path = matched.path(leaf)
    return f"{f'leaf {path}' if path else 'value'} on process {jax.process_index()} ({function})"


def _to_global_impl(
    x: Any, *, sharding: NamedSharding, global_shape: Shape | None, add: bool
) -> jax.Array:
    if add:
        return _transforms.add_over_processes(x, sharding, global_shape)
    with _jax.explicit_transfers():
        return next(leaves_to_global([x], [sharding], [global_shape], _values.x64_enabled(), False))


def _to_local_impl(x: Any, *, sharding: NamedSharding, added: bool) -> jax.Array:
    del added
    return leaf_to_local(x, sharding, numpy=False)


_transforms.define(_to_global_impl, _to_local_impl)
