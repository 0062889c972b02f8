"""Axes that differ in length from example to example, padded to a size that all processes agree on."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
import numpy.typing as npt

from .._errors import ShapeError, SpecError, build
from . import _source

PadTo: TypeAlias = "Mapping[str, Mapping[int, int | Sequence[int]]]"
# For each leaf by name: its padded axes, each with the sizes that it may get, ascending.
Axes: TypeAlias = "tuple[tuple[int, tuple[int, ...]], ...]"


class Ragged(NamedTuple):
    """A padded leaf: its values, and how long each example's axes are.

    `lengths` are int32 of shape `(rows,)` where one axis is padded, else `(rows, padded axes)`.
    """

    values: Any
    lengths: Any


def parse(pad_to: PadTo | None) -> dict[str, Axes]:
    """The axes of each leaf, checked."""
    parsed: dict[str, Axes] = {}
    for name, axes in (pad_to or {}).items():
        found: list[tuple[int, tuple[int, ...]]] = []
        for axis, rule in sorted(axes.items()):
            sizes = (rule,) if isinstance(rule, int) else tuple(rule)
            if axis < 1 or not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] < 1:
                raise build(
                    SpecError,
                    where="Feeder",
                    given=f"pad_to for {name!r}: axis {axis} to {rule!r}",
                    rule="an axis from 1 on is padded to a number, or to the next of ascending ones",
                    advice="give, for example, {1: 128}, {1: (64, 256)} or {1: range(64, 1025, 64)}",
                )
            found.append((axis, sizes))
        parsed[name] = tuple(found)
    return parsed


def fitting(sizes: Sequence[int], needed: int, where: str) -> int:
    """The smallest of the sizes that is not below what is needed."""
    place = bisect.bisect_left(sizes, needed)
    if place < len(sizes):
        return sizes[place]
    raise build(
        ShapeError,
        where=where,
        given=f"an example of length {needed}",
        rule=f"pad_to has sizes up to {sizes[-1]}",
        advice="cut the example in transform=, or give a larger size",
    )


class Examples(list[Any]):
    """Examples of different shapes, which make one leaf."""


def gathered(batch: Any, names: Mapping[str, Axes]) -> Any:
    """The batch with lists of examples, where they are to be padded, each as one leaf."""

    def one(path: Any, node: Any) -> Any:
        return Examples(node) if isinstance(node, list) and name_of(path) in names else node

    return jax.tree_util.tree_map_with_path(one, batch, is_leaf=lambda x: isinstance(x, list))


def name_of(path: Any) -> str:
    """The name of a leaf, such as `tokens` or `inputs/tokens`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def padded(
    leaf: Any, axes: Axes, where: str
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32], tuple[int, ...]]:
    """A padded leaf, its lengths, and the sizes that its axes need here."""
    examples = [_source.host_array(example, where) for example in leaf]
    if any(example.ndim != examples[0].ndim for example in examples):
        raise _unequal(examples, where)
    if any(axis > example.ndim for axis, _ in axes for example in examples):
        raise build(
            ShapeError,
            where=where,
            given=f"examples of {examples[0].ndim} dimensions",
            rule=f"pad_to speaks of axes {[axis for axis, _ in axes]} of the batch",
            advice="name axes that the examples have; axis 0 is that of the batch",
        )
    lengths = np.array([[x.shape[axis - 1] for axis, _ in axes] for x in examples], np.int32)
    lengths = lengths.reshape(len(examples), len(axes))
    sizes = tuple(
        fitting(choices, int(lengths[:, i].max(initial=0)), where)
        for i, (_, choices) in enumerate(axes)
    )
    first = examples[0] if examples else np.zeros((0,) * len(axes), np.float32)
    shape: list[int] = [*first.shape]
    for (axis, _), size in zip(axes, sizes, strict=True):
        shape[axis - 1] = size
    result = np.zeros((len(examples), *shape), first.dtype)
    free = {axis - 1 for axis, _ in axes}
    for row, example in zip(result, examples, strict=True):
        fixed = [n for i, n in enumerate(example.shape) if i not in free]
        if fixed != [n for i, n in enumerate(shape) if i not in free] or (
            example.dtype != first.dtype
        ):
            raise _unequal(examples, where)
        row[tuple(map(slice, example.shape))] = example
    return result, lengths, sizes


def _unequal(examples: Sequence[npt.NDArray[Any]], where: str) -> ShapeError:
    kinds = sorted({f"{example.dtype}{list(example.shape)}" for example in examples})
    return build(
        ShapeError,
        where=where,
        given=f"examples of {', '.join(kinds[:4])}",
        rule="examples of one leaf differ in the axes that pad_to names, and in nothing else",
        advice="name these axes in pad_to, or make the examples alike in transform=",
    )
