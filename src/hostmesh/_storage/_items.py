"""Wanted tensors with their place on a mesh: which boxes of what is stored this process reads."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .. import _recipes, _values
from .._convert import sharding_for
from .._errors import HostmeshError, ShapeError, SpecError, build
from .._plan import Bounds, Chunk, Plan, Shape
from . import _boxes, _once
from ._source import HostArray, Task
from ._wanted import DType, Wanted, abridged, dtype_of, match, reads

Spec: TypeAlias = "PartitionSpec | NamedSharding"
Specs: TypeAlias = (
    "Spec | Mapping[str, Any] | Callable[[str, Shape, np.dtype[Any]], Spec | None] | None"
)


@dataclass(frozen=True, eq=False)
class Item:
    """A wanted tensor, the dtype that is asked for, and how it becomes an array here."""

    number: int
    wanted: Wanted
    asked: np.dtype[Any]
    recipe: _recipes.Inward

    @property
    def plan(self) -> Plan:
        return self.recipe.plan

    @property
    def stored_itemsize(self) -> int:
        return self.wanted.dtype.itemsize

    @functools.cached_property
    def is_plain(self) -> bool:
        """Whether the tensor is a stored one as it is."""
        pieces, axes = self.wanted.pieces, tuple(range(len(self.wanted.shape)))
        return len(pieces) == 1 and pieces[0].axes == axes

    @property
    def layout(self) -> tuple[int, np.dtype[Any], np.dtype[Any]]:
        """Equal for tensors of one shape, spec and dtypes: within a load, of which a model has few."""
        return id(self.recipe), self.asked, self.wanted.dtype

    def box(self, chunk: Chunk) -> Bounds:
        """Where a chunk lies in the tensor."""
        return tuple((c * s, c * s + s) for c, s in zip(chunk, self.plan.shard_shape, strict=True))

    def parts(self, chunk: Chunk) -> tuple[tuple[int, Bounds], ...]:
        """Which holder of a chunk reads which part of it, where each is read once."""
        turn = self.number + sum(chunk)
        return _once.shares(self.box(chunk), self.plan.holders(chunk), self.stored_itemsize, turn)

    def boxes(self, process: int, mode: _once.Mode) -> Iterator[tuple[Chunk, Bounds]]:
        """What a process reads of the tensor."""
        for chunk in self.plan.chunks(process):
            if mode == "read":
                yield chunk, self.box(chunk)
            else:
                yield from ((chunk, box) for who, box in self.parts(chunk) if who == process)

    @functools.cached_property
    def weight(self) -> int:
        """Bytes of chunks on a process, at most: the same on all."""
        chunks = min(self.plan.topology.most_devices, math.prod(self.plan.chunk_counts))
        return chunks * self.plan.device_nbytes(self.recipe.dtype)

    def write(self, place: HostArray, values: HostArray) -> None:
        """Puts stored values into a part of a chunk, in the dtype of the device."""
        where = f"tensor {self.wanted.name!r}"
        if self.asked != self.wanted.dtype and values.dtype != place.dtype:
            with np.errstate(all="ignore"):
                if self.asked == place.dtype:
                    np.copyto(place, values, casting="unsafe")
                    return
                values = values.astype(self.asked)
        _values.convert(values, place, where)


def items_of(
    wanted: Sequence[Wanted],
    mesh: Mesh | None,
    specs: Specs,
    dtype: DType | None,
    where: str,
) -> list[Item]:
    """The items of all wanted tensors, whose specs are looked up by name.

    Raises one error that lists all tensors without a spec, names without a tensor, and shapes that
    their specs do not cut.
    """
    x64 = _values.x64_enabled()
    items: list[Item] = []
    without: list[str] = []
    wrong: list[str] = []
    advice: dict[str, None] = {}  # each once, in order
    kind: type[HostmeshError] = ShapeError
    if isinstance(specs, Mapping):
        known = {each.name for each in wanted}
        plain = [key for key in cast("Mapping[str, Spec]", specs) if not set(key) & set("*?[")]
        if lost := [repr(key) for key in plain if key not in known]:
            without.append(f"not stored, but in specs: {abridged(lost)}")
            advice["correct the names (hostmesh.inspect lists them)"] = None
    lacking: list[str] = []
    for number, each in enumerate(wanted):
        spec = _spec_of(each, specs)
        if spec is None:
            lacking.append(f"{each.name!r} {each.dtype}{list(each.shape)}")
            continue
        asked = dtype_of(each, dtype, where)
        try:
            sharding = sharding_for(mesh, spec)
            recipe = _recipes.inward(sharding, None, asked, each.shape, x64)
            items.append(Item(number, each, asked, recipe))
        except (ShapeError, SpecError) as error:
            wrong.append(f"{each.name!r}: {_in_line(error)}")
            if isinstance(error, SpecError):
                kind = SpecError
                advice["correct the axes in specs"] = None
            else:
                advice["cut by fewer axes what is not a multiple"] = None
    if lacking:
        without.append(f"stored, but without a spec: {abridged(lacking)}")
        advice["leave tensors out with select=, or give the rest a spec ('*': PartitionSpec())"] = (
            None
        )
    if without or wrong:
        raise build(
            SpecError if without else kind,
            where=where,
            given="; ".join([*without, *wrong[:10]])
            + (f" and {len(wrong) - 10} more" if len(wrong) > 10 else ""),
            rule="each tensor that is loaded has a spec that cuts its shape evenly, and each name in"
            " specs a tensor",
            advice="; ".join(advice),
        )
    return items


def _spec_of(each: Wanted, specs: Specs) -> Any:
    if isinstance(specs, PartitionSpec | NamedSharding):
        return specs
    if isinstance(specs, Mapping):
        return match(each.name, cast("Mapping[str, Spec]", specs))
    return specs(each.name, each.shape, each.dtype) if callable(specs) else specs


def _in_line(error: HostmeshError) -> str:
    lines = [line.strip() for line in str(error).splitlines()[1:3]]
    return ", ".join(line.partition(":")[2].strip() for line in lines)


def tasks_of(item: Item, chunk: Chunk, box: Bounds, values: HostArray) -> Iterator[Task]:
    """What is to be read for a part of a chunk, whose values are `values`."""
    origin = item.box(chunk)
    if item.is_plain and box == origin:
        if not _boxes.is_empty(box):
            yield Task(item.wanted.pieces[0].stored, box, values, item.write)
        return
    for piece, there, common in reads(item.wanted, box):
        if _boxes.is_empty(common):
            continue
        cut = tuple(
            a - low if axis is None else slice(a - low, b - low)
            for (a, b), (low, _), axis in zip(common, origin, piece.axes, strict=True)
        )
        kept = [axis for axis in piece.axes if axis is not None]
        place = values[*cut, ...].transpose([kept.index(i) for i in range(len(kept))])
        yield Task(piece.stored, there, place, item.write)


def loads_of(items: Sequence[Item], process: int) -> _once.Load:
    """How many bytes a process reads either way."""
    own = share = 0
    for item in items:
        chunks = item.plan.chunks(process)
        own += len(chunks) * math.prod(item.plan.shard_shape) * item.stored_itemsize
        if item.plan.is_replicated:
            parts = (box for _, box in item.boxes(process, "once"))
            share += sum(_boxes.elements(box) for box in parts) * item.stored_itemsize
        else:
            share += len(chunks) * math.prod(item.plan.shard_shape) * item.stored_itemsize
    return _once.Load(own, share)


def members_of(items: Sequence[Item]) -> tuple[int, ...]:
    """The processes that hold any of the tensors."""
    topologies = {id(item.plan.topology): item.plan.topology for item in items}
    return tuple(sorted({p for each in topologies.values() for p in each.processes}))


def described(items: Sequence[Item]) -> str:
    """All that must be the same on all processes, in words that a digest is made of."""
    layouts = {item.layout: item for item in items}
    in_words = {layout: _layout_in_words(item) for layout, item in layouts.items()}
    return ";".join(f"{_tensor_in_words(item)} {in_words[item.layout]}" for item in items)


def _tensor_in_words(item: Item) -> str:
    if not item.is_plain:
        return str(item.wanted)
    stored = item.wanted.pieces[0].stored
    return f"{item.wanted.name} {stored.name} {stored.source} {stored.start}"


def _layout_in_words(item: Item) -> str:
    plan = item.plan
    return (
        f"{item.wanted.dtype} {plan.global_shape} {item.asked} {plan.axes} {plan.topology.axes}"
        f" {item.recipe.dtype}"
    )
