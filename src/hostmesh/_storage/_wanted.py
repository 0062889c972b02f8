"""Which tensors are wanted, of which stored ones each is made, and where. No file, no device.

What is stored is selected, renamed, transposed and joined, in this order; specs and dtypes go by
the names that come out.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt

from .._errors import ShapeError, SpecError, build
from .._plan import Bounds, Shape
from ._boxes import is_empty, overlap
from ._source import Stored

Names: TypeAlias = "str | Sequence[str] | Callable[[str], bool]"
Rename: TypeAlias = "Mapping[str, str] | Callable[[str], str]"
DType: TypeAlias = "npt.DTypeLike | Mapping[str, npt.DTypeLike]"
Axes: TypeAlias = "Sequence[int] | None"
T = TypeVar("T")

_SHOWN = 20


@dataclass(frozen=True)
class Join:
    """Several tensors as one: `hostmesh.load_safetensors(..., join={"qkv": Join(["q", "k", "v"])})`.

    Attributes:
      names: the tensors, by the names that `rename` gives them; or one pattern (`*` stands for
        anything), whose matches are taken in their natural order: `"experts.2"` before `"experts.10"`.
      axis: the axis along which they lie one after the other, or, with `stack`, the new axis.
      stack: puts them one behind the other along a new axis; all have one shape then.

    >>> import hostmesh
    >>> hostmesh.Join("experts.*.up", axis=0, stack=True).axis
    0
    """

    names: str | Sequence[str]
    axis: int = 0
    stack: bool = False


@dataclass(frozen=True)
class Piece:
    """A stored tensor within a wanted one: it fills `box`.

    `axes` gives for each dimension of the wanted tensor that of the stored one, or `None` for one
    of size 1 that the stored one does not have.
    """

    stored: Stored
    axes: tuple[int | None, ...]
    box: Bounds


@dataclass(frozen=True)
class Wanted:
    """A tensor to be made: its pieces fill it without overlap."""

    name: str
    shape: Shape
    dtype: np.dtype[Any]
    pieces: tuple[Piece, ...]


def wanted_of(
    stored: Sequence[Stored],
    where: str,
    *,
    select: Names | None = None,
    rename: Rename | None = None,
    transpose: Mapping[str, Axes] | Sequence[str] | str | None = None,
    join: Mapping[str, Join] | None = None,
) -> list[Wanted]:
    """The tensors that are wanted, in the order of their first bytes.

    Raises:
      SpecError: one for all names that are asked for and not there, or that two tensors get.
      ShapeError: one for all shapes that do not fit together.
    """
    lacking: list[str] = []
    twice: list[str] = []
    shapes: list[str] = []
    found: dict[str, Wanted] = {}
    chosen = list(_selected(stored, select, lacking))
    if isinstance(rename, Mapping):
        names = {each.name for each in chosen}
        lacking += [f"{name!r} (rename)" for name in rename if name not in names]
    for each in chosen:
        name = _renamed(each.name, rename)
        if name in found:
            twice.append(f"{name!r}")
        found[name] = _whole(name, each)
    turns = _turns(transpose)
    used: set[str] = set()
    for name, tensor in found.items():
        if (turn := _turn_of(name, turns, used)) is not None:
            found[name] = _transposed(tensor, turn, shapes)
    parts: set[str] = set()
    joined: dict[str, Wanted] = {}
    for name, how in (join or {}).items():
        names = _parts_of(how, found)
        missing = [part for part in names if part not in found]
        lacking += [f"{part!r} (join {name!r})" for part in missing]
        if not names:
            lacking.append(f"{how.names!r} (join {name!r})")
        if missing or not names:
            continue
        parts.update(names)
        tensor = _joined(name, [found[part] for part in names], how, shapes)
        if tensor is not None:
            turn = _turn_of(name, turns, used)
            joined[name] = tensor if turn is None else _transposed(tensor, turn, shapes)
    lacking += [f"{pattern!r} (transpose)" for pattern in turns if pattern not in used]
    left = {name: tensor for name, tensor in found.items() if name not in parts}
    twice += [f"{name!r}" for name in joined if name in left]
    _raise_names(where, lacking, twice, [each.name for each in stored])
    _raise_shapes(where, shapes)
    return sorted((left | joined).values(), key=_place_of)


def match(name: str, choices: Mapping[str, T]) -> T | None:
    """What a mapping by name or pattern gives a name: the name itself, else the first that matches.

    >>> match("a.w", {"*.w": 1, "a.w": 2}), match("b.w", {"*.w": 1}), match("b", {"*.w": 1})
    (2, 1, None)
    """
    if name in choices:
        return choices[name]
    return next((value for key, value in choices.items() if fnmatch.fnmatchcase(name, key)), None)


def dtype_of(tensor: Wanted, dtype: DType | None, where: str) -> np.dtype[Any]:
    """The dtype that is asked for, before JAX's own rule; the stored one where none is."""
    chosen = match(tensor.name, dtype) if isinstance(dtype, Mapping) else dtype
    if chosen is None:
        return tensor.dtype
    try:
        return np.dtype(cast("Any", chosen))
    except TypeError:
        raise build(
            SpecError,
            where=where,
            given=f"dtype={chosen!r} for {tensor.name!r}",
            rule="it is a dtype, or a mapping of them by name or pattern",
            advice="pass jnp.bfloat16, say",
        ) from None


def _place_of(tensor: Wanted) -> tuple[int, int, str]:
    first = min(((p.stored.source, p.stored.start) for p in tensor.pieces), default=(0, 0))
    return first[0], first[1], tensor.name


def _selected(
    stored: Sequence[Stored], select: Names | None, lacking: list[str]
) -> Iterator[Stored]:
    if select is None:
        yield from stored
    elif callable(select):
        yield from (each for each in stored if select(each.name))
    else:
        patterns = [select] if isinstance(select, str) else list(select)
        used: set[str] = set()
        for each in stored:
            hits = [p for p in patterns if p == each.name or fnmatch.fnmatchcase(each.name, p)]
            used.update(hits)
            if hits:
                yield each
        lacking += [f"{pattern!r} (select)" for pattern in patterns if pattern not in used]


def _renamed(name: str, rename: Rename | None) -> str:
    if rename is None:
        return name
    return rename.get(name, name) if isinstance(rename, Mapping) else rename(name)


def _whole(name: str, stored: Stored) -> Wanted:
    box = tuple((0, size) for size in stored.shape)
    axes = tuple(range(len(stored.shape)))
    shape = stored.shape
    if stored.reversed_axes:
        shape, axes, box = shape[::-1], axes[::-1], box[::-1]
    return Wanted(name, shape, stored.dtype, (Piece(stored, axes, box),))


def _turns(transpose: Mapping[str, Axes] | Sequence[str] | str | None) -> dict[str, Axes]:
    if transpose is None:
        return {}
    if isinstance(transpose, str):
        return {transpose: None}
    if isinstance(transpose, Mapping):
        return dict(transpose)
    return dict.fromkeys(transpose)


def _turn_of(name: str, turns: Mapping[str, Axes], used: set[str]) -> tuple[int, ...] | None:
    """The axes by which a tensor is turned: empty for all in reverse; `None` for no turn."""
    keys = [key for key in turns if key == name] or [
        key for key in turns if fnmatch.fnmatchcase(name, key)
    ]
    if not keys:
        return None
    used.update(keys)
    return tuple(turns[keys[0]] or ())


def _transposed(tensor: Wanted, axes: tuple[int, ...], shapes: list[str]) -> Wanted:
    rank = len(tensor.shape)
    order = axes or tuple(reversed(range(rank)))
    if sorted(order) != list(range(rank)):
        shapes.append(f"{tensor.name!r} of shape {tensor.shape}: no transpose by axes {axes}")
        return tensor
    pieces = tuple(
        Piece(p.stored, tuple(p.axes[i] for i in order), tuple(p.box[i] for i in order))
        for p in tensor.pieces
    )
    return Wanted(tensor.name, tuple(tensor.shape[i] for i in order), tensor.dtype, pieces)


def _parts_of(how: Join, found: Mapping[str, Wanted]) -> list[str]:
    if not isinstance(how.names, str):
        return list(how.names)
    hits = [name for name in found if fnmatch.fnmatchcase(name, str(how.names))]
    return sorted(hits, key=_natural)


def _natural(name: str) -> list[tuple[int, int, str]]:
    words = re.split(r"([0-9]+)", name)
    return [(1, int(w), "") if i % 2 else (0, 0, w) for i, w in enumerate(words)]


def _joined(name: str, parts: list[Wanted], how: Join, shapes: list[str]) -> Wanted | None:
    rank = len(parts[0].shape) + how.stack
    axis = how.axis + rank if how.axis < 0 else how.axis
    kinds = {(p.dtype, p.shape if how.stack else _without(p.shape, axis)) for p in parts}
    if not 0 <= axis < rank or len(kinds) > 1:
        listed = ", ".join(f"{p.name!r} {p.dtype}{list(p.shape)}" for p in parts[:_SHOWN])
        shapes.append(
            f"{name!r} of {listed}: they do not {'stack' if how.stack else 'join'} on axis {how.axis}"
        )
        return None
    pieces: list[Piece] = []
    at = 0
    for part in parts:
        size = 1 if how.stack else part.shape[axis]
        for p in part.pieces:
            if how.stack:
                placed = (*p.axes[:axis], None, *p.axes[axis:])
                box = (*p.box[:axis], (at, at + 1), *p.box[axis:])
            else:
                a, b = p.box[axis]
                placed = p.axes
                box = (*p.box[:axis], (a + at, b + at), *p.box[axis + 1 :])
            pieces.append(Piece(p.stored, placed, box))
        at += size
    rest = parts[0].shape if how.stack else _without(parts[0].shape, axis)
    shape = (*rest[:axis], at, *rest[axis:])
    if math.prod(size or 1 for size in shape) >= 2**63:
        shapes.append(f"{name!r} of shape {shape}: more than 2**63 elements")
        return None
    return Wanted(name, shape, parts[0].dtype, tuple(pieces))


def _without(shape: Shape, axis: int) -> Shape:
    return shape[:axis] + shape[axis + 1 :]


def abridged(words: Sequence[str]) -> str:
    """A list in words, the first of them."""
    more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return ", ".join(words[:_SHOWN]) + more


def _raise_names(where: str, lacking: list[str], twice: list[str], known: list[str]) -> None:
    given = [f"not there: {abridged(lacking)}"] if lacking else []
    given += [f"twice: {abridged(twice)}"] if twice else []
    if given:
        raise build(
            SpecError,
            where=where,
            given="; ".join(given),
            rule=f"the {len(known)} stored tensors are {abridged([repr(n) for n in known])}",
            advice="correct the names; hostmesh.inspect(path) lists what is stored",
        )


def _raise_shapes(where: str, shapes: list[str]) -> None:
    if shapes:
        raise build(
            ShapeError,
            where=where,
            given="; ".join(shapes[:_SHOWN]),
            rule="a transpose names each axis once; joined tensors have one dtype, and one shape but"
            " for the axis that they are joined on",
            advice="correct the axes",
        )


def reads(tensor: Wanted, box: Bounds) -> Iterator[tuple[Piece, Bounds, Bounds]]:
    """The pieces that a box of a wanted tensor is made of: which box of the stored tensor, and
    which part of the wanted tensor that fills."""
    for piece in tensor.pieces:
        common = overlap(box, piece.box)
        if is_empty(common):
            continue
        there: list[tuple[int, int]] = [(0, 0)] * len(piece.stored.shape)
        for (a, b), (low, _), axis in zip(common, piece.box, piece.axes, strict=True):
            if axis is not None:
                there[axis] = (a - low, b - low)
        yield piece, tuple(there), common
