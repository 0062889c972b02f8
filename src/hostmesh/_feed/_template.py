"""What batches are made of, and how one becomes global arrays: host buffers first, then devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import msgpack
import numpy as np
import numpy.typing as npt
from jax.sharding import NamedSharding, PartitionSpec

from .. import _jax, _staging, _values
from .._convert import sharding_for
from .._errors import FeedError, HostmeshError, ShapeError, at, build
from .._inward import leaves_to_global
from .._packing import pack, plain_structure, structure_of
from .._plan import plan
from .._recipes import mesh_of
from .._trees import Matched, Tree, is_number_list
from .._verdict import name_processes
from . import _alike, _ragged, _source
from ._ends import Agreed, Outcome
from ._rows import Rows

HostArray = npt.NDArray[Any]


@dataclass
class Staged:
    """A batch in host memory of our own: `rows` rows, in arrays of as many or more."""

    number: int
    rows: int
    arrays: list[HostArray]
    lengths: dict[int, npt.NDArray[np.int32]]
    sizes: tuple[int, ...]
    marks: bytes
    state: Any = None

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)


@dataclass(frozen=True, eq=False)
class Leaf:
    """One leaf of all batches. `trailing` are its dimensions but the first: this process's, and
    the global array's; 0 where they are padded."""

    name: str
    dtype: np.dtype[Any]
    sharding: NamedSharding
    trailing: tuple[int, ...]
    global_trailing: tuple[int, ...]
    padded: _ragged.Axes

    def __str__(self) -> str:
        free = {axis for axis, _ in self.padded}
        sizes = ("any" if i in free else str(n) for i, n in enumerate(self.global_trailing, 1))
        return f"{self.name or 'value'}: {self.dtype}[{', '.join(('rows', *sizes))}]"


@dataclass(frozen=True, eq=False)
class Template:
    """What all batches are made of."""

    structure: Any
    leaves: tuple[Leaf, ...]

    def described(self) -> str:
        return f"{', '.join(map(str, self.leaves))} in {str(self.structure)[:300]}"


@dataclass(eq=False)
class Layout:
    """Where batches go: the mesh, specs as given, and the batch axis, as this process has it."""

    mesh: Any
    specs: Tree
    axes: tuple[str, ...]  # that cut the batch axis
    held: int  # chunks of it that this process holds
    count: int  # in all
    padded: dict[str, _ragged.Axes]
    x64: bool
    template: Template | None = None
    shapes: set[tuple[int, ...]] = field(default_factory=set[tuple[int, ...]])

    def stage(self, batch: Tree, number: int, mark: bool, capacity: int | None) -> Staged:
        """Copies a batch into host memory of our own; the first one makes the template."""
        where = f"batch {number} of the source of process {jax.process_index()}"
        if self.padded:
            batch = _ragged.gathered(batch, self.padded)
        leaves, structure = jax.tree.flatten(batch, is_leaf=_is_leaf)
        known = self.template
        if known is not None and structure != known.structure:
            raise _other(where, f"structure {structure}", f"structure {known.structure}")
        names = self._names(structure) if known is None else [leaf.name for leaf in known.leaves]
        values: list[HostArray] = []
        lengths: dict[int, npt.NDArray[np.int32]] = {}
        sizes: tuple[int, ...] = ()
        for index, (leaf, name) in enumerate(zip(leaves, names, strict=True)):
            there = f"leaf {name} of {where}" if name else where
            if axes := self.padded.get(name):
                value, lengths[index], own = _ragged.padded(leaf, axes, there)
                sizes += own
            else:
                value = _source.host_array(leaf, there)
            values.append(value)
        rows = _common_rows(values, names, where)
        if known is None:
            kinds = [(value.dtype, value.shape[1:]) for value in values]
            known = self._made(structure, names, kinds, where)
        for value, leaf in zip(values, known.leaves, strict=True):
            found = _values.device_dtype(value.dtype, self.x64), _free(value.shape[1:], leaf.padded)
            if found != (leaf.dtype, leaf.trailing):
                raise _other(
                    f"leaf {leaf.name} of {where}",
                    f"{found[0]}, {list(found[1])} a row",
                    f"{leaf.dtype}, {list(leaf.trailing)} a row",
                )
        arrays = [
            _owned(value, leaf.dtype, capacity, f"leaf {leaf.name} of {where}")
            for value, leaf in zip(values, known.leaves, strict=True)
        ]
        self.template = known
        shardings = [leaf.sharding for leaf in known.leaves]
        marks = _alike.marks_of(arrays, shardings, rows, self.held) if mark else b""
        return Staged(number, rows, arrays, lengths, sizes, marks)

    def opening(self, first: Staged | None, chunk_rows: int | None) -> bytes:
        """What this process's batches are made of, for the others; empty where it has none."""
        if first is None or self.template is None:
            return b""
        known = self.template
        kinds = [(leaf.dtype.name, leaf.global_trailing) for leaf in known.leaves]
        each = -(-first.rows // self.held) if chunk_rows is None else chunk_rows
        plain = plain_structure(known.structure)
        return pack((plain, str(known.structure), kinds, known.described(), each))

    def adopt(
        self, openings: Sequence[bytes], members: Sequence[int], number: int
    ) -> int | Outcome:
        """The rows of a chunk that follow from what all processes' batches are made of."""
        found = {
            process: msgpack.unpackb(opening)
            for process, opening in zip(members, openings, strict=True)
            if opening
        }
        alike: dict[bytes, list[int]] = {}
        for process, opening in found.items():
            alike.setdefault(pack(opening[1:3]), []).append(process)
        if len(alike) > 1:
            told = [f"{name_processes(who)}: {found[who[0]][3]}" for who in alike.values()]
            largest = max(alike.values(), key=len)
            return Outcome(
                "failed",
                number,
                tuple(p for who in alike.values() if who is not largest for p in who),
                "; ".join(told),
                "structure, dtypes and shapes of batches are the same on all processes: one that"
                " compiles another program waits for the others for ever",
                "make them alike in the source or in transform=",
            )
        if self.template is None and found:
            plain, shown, kinds, *_ = next(iter(found.values()))
            if not plain:
                return Outcome(
                    "failed",
                    number,
                    (jax.process_index(),),
                    f"no batch on some process, and on {name_processes(found)} {shown[:300]}",
                    "a process without any rows learns of dicts, lists, tuples and None only",
                    "give each process one batch at least, or use plain dicts",
                )
            structure = structure_of(plain)
            sizes = [(np.dtype(name), tuple(trailing)) for name, trailing in kinds]
            self.template = self._made(structure, self._names(structure), sizes, "", learnt=True)
        return max((opening[4] for opening in found.values()), default=1)

    def arrays(self, staged: Staged | None, agreed: Agreed, rows: Rows) -> tuple[Tree, int]:
        """The global arrays of a batch, and their bytes here; filler where there are no rows."""
        template = self.template
        assert template is not None
        capacity = self.held * rows.chunk_rows
        sizes = iter(agreed.sizes)
        values: list[HostArray] = []
        shardings: list[NamedSharding] = []
        for index, leaf in enumerate(template.leaves):
            trailing = list(leaf.trailing)
            for axis, _ in leaf.padded:
                trailing[axis - 1] = next(sizes)
            here = None if staged is None else staged.arrays[index]
            values.append(_filled(here, (capacity, *trailing), leaf.dtype))
            shardings.append(leaf.sharding)
            if leaf.padded:
                lengths = None if staged is None else staged.lengths[index]
                filled = _filled(lengths, (capacity, len(leaf.padded)), np.dtype(np.int32))
                values.append(filled[:, 0] if len(leaf.padded) == 1 else filled)
                shardings.append(self.on_batch_axis(mesh_of(leaf.sharding)))
        self.shapes.add(agreed.sizes)
        arrays = self._to_devices(values, shardings)
        if self.padded:
            rest = iter(arrays)
            arrays = [
                _ragged.Ragged(next(rest), next(rest)) if leaf.padded else next(rest)
                for leaf in template.leaves
            ]
        return template.structure.unflatten(arrays), sum(value.nbytes for value in values)

    def mask(self, agreed: Agreed, rows: Rows, me: int) -> jax.Array:
        """Which rows of the global batch are no filler."""
        own = agreed.rows[rows.members.index(me)]
        here = np.arange(self.held * rows.chunk_rows) < own
        assert self.template is not None
        mesh = mesh_of(self.template.leaves[0].sharding)
        return self._to_devices([here], [self.on_batch_axis(mesh)])[0]

    def on_batch_axis(self, mesh: Any) -> NamedSharding:
        return sharding_for(mesh, PartitionSpec(self.axes) if self.axes else PartitionSpec())

    def _to_devices(self, values: list[HostArray], shardings: list[NamedSharding]) -> list[Any]:
        with _jax.explicit_transfers():
            return list(
                leaves_to_global(values, shardings, [None] * len(values), self.x64, may_alias=True)
            )

    def _names(self, structure: Any) -> list[str]:
        numbered = structure.unflatten(range(structure.num_leaves))
        return [_ragged.name_of(p) for p, _ in jax.tree_util.tree_leaves_with_path(numbered)]

    def _made(
        self,
        structure: Any,
        names: list[str],
        kinds: Sequence[tuple[np.dtype[Any], tuple[int, ...]]],
        where: str,
        *,
        learnt: bool = False,
    ) -> Template:
        """The template of batches of these kinds: this process's, or global ones that it learnt of."""
        if unknown := set(self.padded) - set(names):
            raise build(
                FeedError,
                where=where,
                given=f"pad_to for {', '.join(sorted(unknown))}",
                rule=f"the leaves of a batch are {', '.join(names)}",
                advice="name some of these",
            )
        numbered = structure.unflatten(range(structure.num_leaves))
        items = Matched(numbered, self.specs, "Feeder", "specs").items
        leaves: list[Leaf] = []
        for name, (dtype, trailing), item in zip(names, kinds, items, strict=True):
            sharding = sharding_for(self.mesh, item)
            axes = self.padded.get(name, ())
            kept = _free(trailing, axes)
            try:
                layout = plan(
                    mesh_of(sharding),
                    sharding.spec,
                    local_shape=None if learnt else (self.held, *kept),
                    global_shape=(self.count, *kept) if learnt else None,
                    process=jax.process_index(),
                )
            except HostmeshError as error:
                raise at(error, f"leaf {name} of {where}") from None
            if any(layout.chunk_counts[axis] > 1 for axis, _ in axes):
                raise build(
                    FeedError,
                    where=f"leaf {name} of {where}",
                    given=f"pad_to, and spec {sharding.spec}",
                    rule="an axis that is padded is not cut by the spec",
                    advice="cut it in the step, with jax.lax.with_sharding_constraint",
                )
            local = layout.local_shape() or ()
            native = _values.device_dtype(dtype, self.x64)
            whole = layout.global_shape
            leaves.append(Leaf(name, native, sharding, local[1:], whole[1:], axes))
        return Template(structure, tuple(leaves))


def _is_leaf(node: object) -> bool:
    return isinstance(node, _ragged.Examples) or is_number_list(node)


def _free(trailing: Sequence[int], axes: _ragged.Axes) -> tuple[int, ...]:
    """Trailing dimensions with 0 for those that are padded."""
    free = {axis for axis, _ in axes}
    return tuple(0 if i in free else n for i, n in enumerate(trailing, 1))


def _common_rows(values: Sequence[HostArray], names: Sequence[str], where: str) -> int:
    rows = {value.shape[0] if value.ndim else None for value in values}
    if len(rows) == 1 and (found := rows.pop()) is not None:
        return found
    shown = ", ".join(f"{n or 'value'}: {v.shape}" for n, v in zip(names, values, strict=True))
    raise build(
        ShapeError,
        where=where,
        given=shown[:300] or "no leaves",
        rule="the first axis of all leaves is that of the batch, of one length",
        advice="give each leaf a row for each example",
    )


def _owned(value: HostArray, dtype: np.dtype[Any], capacity: int | None, where: str) -> HostArray:
    """A copy of our own in the dtype of the device, with room for as many rows as will be sent."""
    rows = max(len(value), capacity or 0)
    result = _staging.buffer((rows, *value.shape[1:]), dtype)
    _values.convert(value, result[: len(value)], where)
    result[len(value) :] = np.zeros((), dtype)
    return result


def _filled(value: HostArray | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> HostArray:
    """The value with filler up to a shape: itself where it has the shape already."""
    if value is not None and value.shape == shape:
        return value
    result = _staging.buffer(shape, dtype)
    result[...] = np.zeros((), dtype)
    if value is not None:
        result[tuple(map(slice, value.shape))] = value
    return result


def _other(where: str, found: str, known: str) -> FeedError:
    return build(
        FeedError,
        where=where,
        given=found,
        rule=f"all batches are alike, and those before had {known}",
        advice="make them alike in the source or in transform=",
    )
