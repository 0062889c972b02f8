"""The plan of an array, from its sharding and shape alone: values are never touched.

While JAX traces, an array has no devices, and often no layout yet. What is known then:

- Under `jit`, axes of type Explicit are part of the array's type. Those of type Auto are the
  compiler's, which decides later: the spec has to be given.
- Under `shard_map`, the array is one device's block: the spec that it was cut by has to be given,
  and the global shape follows.
- The type has a mesh without devices. Their processes are those of the mesh that is given or set,
  or all the same where the program is one process.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
from jax.core import ShapedArray, Tracer
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from .. import _jax, _spec
from .._errors import ShapeError, SpecError, build
from .._layout import layout_of
from .._plan import Plan, plan
from .._topology import Topology


def plan_of(x: Any, mesh: Mesh | Topology | None, spec: Any, process: int | None) -> Plan:
    """The plan of a leaf. Raises errors that the caller places at the leaf."""
    if isinstance(x, Plan):
        return x if process is None else dataclasses.replace(x, process=process)
    if not hasattr(x, "shape"):
        raise build(
            ShapeError,
            where="draw",
            given=f"a {type(x).__name__}",
            rule="a picture is of arrays, jax.ShapeDtypeStructs and plans: what has a shape",
            advice="pass one of these, or a pytree of them",
        )
    if spec is not None and not isinstance(spec, PartitionSpec | NamedSharding):
        raise build(
            SpecError,
            where="draw",
            given=f"spec {spec!r}",
            rule="a spec is a jax.sharding.PartitionSpec or NamedSharding, or None for a leaf's own",
            advice="write PartitionSpec('x') rather than 'x'",
        )
    kind = _type_of(x)
    sharding = getattr(kind, "sharding", None)
    own = sharding.mesh if isinstance(sharding, NamedSharding) else None
    if spec is None:
        sharding = _checked(kind, sharding)
        topology = _topology(mesh, sharding.mesh)
        return plan(topology, sharding.spec, global_shape=kind.shape, process=process)
    if isinstance(spec, NamedSharding):
        topology, spec = _topology(mesh, spec.mesh), spec.spec
    else:
        topology = _topology(mesh, own)
    return plan(topology, spec, global_shape=_whole(kind, own, topology, spec), process=process)


def _type_of(x: Any) -> Any:
    """What has a leaf's shape and sharding: for what is traced its type, or else the leaf."""
    return jax.typeof(x) if isinstance(x, Tracer) else x


def _checked(kind: Any, sharding: Any) -> NamedSharding:
    """The sharding, if it says which mesh axes cut which dimension."""
    traced = isinstance(kind, ShapedArray)
    given = f"{'array' if traced else type(kind).__name__} of shape {tuple(kind.shape)}"
    if not isinstance(sharding, NamedSharding):
        raise build(
            SpecError,
            where="draw",
            given=f"{given} with {f'sharding {sharding}' if sharding else 'no sharding'}",
            rule="a layout is known by a mesh and a spec, which are those of a NamedSharding",
            advice="pass mesh and spec, or an array that jax.device_put or hostmesh.to_global"
            " put on a mesh",
        )
    if traced:
        types = dict(zip(sharding.mesh.axis_names, sharding.mesh.axis_types, strict=True))
        manual = [axis for axis, of in types.items() if of == AxisType.Manual]
        auto = [axis for axis, of in types.items() if of == AxisType.Auto]
        if manual:
            raise build(
                SpecError,
                where="draw",
                given=f"{given}, traced by shard_map over mesh axes {manual}",
                rule="there an array is the block of one device, and does not say how it was cut",
                advice="pass as spec what shard_map has in its in_specs or out_specs",
            )
        if auto or not types:
            raise build(
                SpecError,
                where="draw",
                given=f"{given}, traced with " + (f"Auto mesh axes {auto}" if auto else "no mesh"),
                rule="what is traced has no sharding yet but that of Explicit mesh axes: the"
                " compiler decides later",
                advice="pass mesh and spec, or draw the array outside of jit",
            )
    return sharding


def _topology(mesh: Mesh | Topology | None, own: Any) -> Topology:
    """Whose the devices are: of the mesh that is given, of the array's, or of the one that is set."""
    if isinstance(mesh, Topology):
        return mesh
    if mesh is not None:
        return Topology.from_mesh(mesh)
    if isinstance(own, Mesh):
        return Topology.from_mesh(own)
    in_force = _mesh_in_context()
    if in_force is not None and (own is None or not own.shape or in_force.shape == own.shape):
        return Topology.from_mesh(in_force)
    if own is not None and own.shape and _jax.place()[1] == 1:
        return Topology.build(own, 1)
    raise build(
        SpecError,
        where="draw",
        given="mesh=None" + (f" for an array on {own}" if own is not None else ""),
        rule="whose devices hold what is read off a mesh of devices, and none is known here",
        advice="pass the mesh, or a hostmesh.Topology",
    )


def _mesh_in_context() -> Mesh | None:
    try:
        return _jax.mesh_in_context()
    except ValueError:  # while JAX traces, it does not tell
        return None


def _whole(kind: Any, own: Any, topology: Topology, spec: Any) -> tuple[int, ...]:
    """The global shape: of a block that `shard_map` made, larger along what it cut."""
    axes = _spec.normalize(topology, spec, len(kind.shape))
    if own is None or isinstance(own, Mesh):
        return tuple(kind.shape)
    types = dict(zip(own.axis_names, own.axis_types, strict=True))
    by_hand = tuple(tuple(a for a in cut if types.get(a) == AxisType.Manual) for cut in axes)
    counts = layout_of(topology, by_hand).counts
    return tuple(size * n for size, n in zip(kind.shape, counts, strict=True))
