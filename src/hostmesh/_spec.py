"""Partition specs as planning reads them: for each dimension, the mesh axes that cut it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias, cast

from ._errors import SpecError, build

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec

    from ._topology import Topology

Spec: TypeAlias = "PartitionSpec | tuple[str | tuple[str, ...] | None, ...] | str"
Axes: TypeAlias = tuple[tuple[str, ...], ...]


def normalize(topology: Topology, spec: Spec, rank: int) -> Axes:
    """The axes that cut each of `rank` dimensions.

    Raises `SpecError` for what is no spec of this mesh and rank: `None`, unknown axes, an axis used
    twice, unconstrained dimensions, unreduced axes, more entries than dimensions.

    >>> from hostmesh import Topology
    >>> normalize(Topology.build({"x": 2, "y": 2}, processes=2), ("x", None, ("y",)), rank=4)
    (('x',), (), ('y',), ())
    """
    if cast("object", spec) is None:
        raise spec_error(
            spec,
            "None says nothing of a layout",
            "write PartitionSpec() to replicate a value on every device",
        )
    for kind in ("unreduced", "reduced"):
        if axes := getattr(spec, kind, None):
            raise spec_error(
                spec,
                f"axes {sorted(axes)} are {kind}: the values on the devices are partial sums,"
                " which no host-local value stands for",
                "reduce the array inside jit first",
            )
    entries = (spec,) if isinstance(spec, str) else _entries(spec)
    cuts = tuple(_axes_of(spec, dimension, entry) for dimension, entry in enumerate(entries))
    used = [axis for axes in cuts for axis in axes]
    for axis in used:
        if axis not in topology.shape:
            raise spec_error(
                spec,
                f"{axis!r} is no axis of the mesh, whose axes are {dict(topology.axes)}",
                "correct the name, or build the mesh with this axis",
            )
        if used.count(axis) > 1:
            raise spec_error(
                spec,
                f"axis {axis!r} is used {used.count(axis)} times; a mesh axis cuts at most one"
                " dimension, once",
                "remove all uses but one",
            )
    if len(cuts) > rank:
        raise spec_error(
            spec,
            f"it has {len(cuts)} entries, more than the {rank} dimensions of the value",
            "drop the last entries, or add dimensions to the value"
            if rank
            else "use PartitionSpec() for a scalar",
        )
    return cuts + ((),) * (rank - len(cuts))


def hashable(spec: Spec) -> Spec:
    """`spec` itself, or as tuples where it was written with lists."""
    try:
        hash(spec)
    except TypeError:
        entries = tuple(
            tuple(cast("list[object]", entry)) if isinstance(entry, list) else entry
            for entry in _entries(spec)
        )
        try:
            hash(entries)
        except TypeError:
            raise spec_error(
                spec, "an entry is None, an axis name or a tuple of axis names", "correct it"
            ) from None
        return cast("Spec", entries)
    return spec


def _entries(spec: object) -> tuple[object, ...]:
    # What has no order (sets, mappings) or ends after one reading cannot say which dimension.
    kind = type(spec).__name__
    if isinstance(spec, Mapping) or not hasattr(spec, "__getitem__"):
        raise spec_error(cast("object", spec), f"a {kind} is no spec", "pass a PartitionSpec")
    return tuple(cast("Iterable[object]", spec))


def _axes_of(spec: Spec, dimension: int, entry: object) -> tuple[str, ...]:
    kind = type(entry).__name__
    if entry is None:
        return ()
    if isinstance(entry, str):
        return (entry,)
    if isinstance(entry, tuple | list):
        axes = tuple(cast("Iterable[object]", entry))
        if all(isinstance(axis, str) for axis in axes):
            return cast("tuple[str, ...]", axes)
    if "unconstrained" in kind.lower():
        raise spec_error(
            spec,
            f"dimension {dimension} is UNCONSTRAINED, which leaves the layout to the compiler;"
            " a conversion needs to know it",
            "name the mesh axes, or None where the dimension is not cut",
        )
    raise spec_error(
        spec,
        f"entry {dimension} is {entry!r}; an entry is None, an axis name or a tuple of axis names",
        "correct the entry",
    )


def spec_error(spec: object, rule: str, advice: str) -> SpecError:
    """A `SpecError` about `spec`, to be placed at its leaf by the caller."""
    return build(SpecError, where="plan", given=f"spec {spec!r}", rule=rule, advice=advice)
