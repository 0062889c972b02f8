"""Matching a pytree with the specs (or shapes) that go with it, by JAX's prefix rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from ._errors import SpecError, build

Tree = Any


def is_number_list(node: object) -> bool:
    """Whether a node is a (nested) list of Python numbers, which is one leaf as for `jnp.asarray`.

    >>> is_number_list([1, 2.5]), is_number_list([[1], [2]]), is_number_list([]), is_number_list(3)
    (True, True, False, False)
    """
    return (
        type(node) is list
        and len(node) > 0
        and all(type(x) in (int, float, bool, complex) or is_number_list(x) for x in node)
    )


class Matched:
    """The leaves of a value, the item of the prefix for each, and how to put results back.

    A prefix leaf counts for every leaf below its place in the value.
    """

    def __init__(
        self, value: Tree, prefix: Tree, is_item: Callable[[Any], bool], function: str, what: str
    ) -> None:
        self._value = value
        items, self._outer = jax.tree.flatten(prefix, is_leaf=lambda x: x is None or is_item(x))
        try:
            subtrees = self._outer.flatten_up_to(value)
        except (ValueError, TypeError) as error:
            raise build(
                SpecError,
                where=function,
                given=f"{what} of structure {self._outer} for a value of structure"
                f" {jax.tree.structure(value)}",
                rule=f"{what} are a prefix of the value's pytree: {_first_line(error)}",
                advice=f"give one for all leaves, or {what} of the value's own structure",
            ) from None
        self._inner: list[Any] = []
        self.leaves: list[Any] = []
        self.items: list[Any] = []
        for subtree, item in zip(subtrees, items, strict=True):
            below, inner = jax.tree.flatten(subtree, is_leaf=is_number_list)
            self._inner.append(inner)
            self.leaves += below
            self.items += [item] * len(below)

    def rebuild(self, results: list[Any]) -> Tree:
        """The value's tree with `results` in place of its leaves."""
        it = iter(results)
        subtrees = [
            inner.unflatten([next(it) for _ in range(inner.num_leaves)]) for inner in self._inner
        ]
        return self._outer.unflatten(subtrees)

    def path(self, number: int) -> str:
        """The key path of a leaf, such as `['params']['w']`; empty for a value that is one leaf."""
        leaves = jax.tree_util.tree_leaves_with_path(self._value, is_leaf=is_number_list)
        return jax.tree_util.keystr(leaves[number][0])


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")
