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

    A prefix leaf counts for every leaf below its place in the value. Items come as they stand in
    the prefix: whoever asks checks them. `is_item` tells of items that are pytrees themselves.
    """

    def __init__(
        self,
        value: Tree,
        prefix: Tree,
        function: str,
        what: str,
        is_item: Callable[[Any], bool] | None = None,
    ) -> None:
        self._value = value
        self.leaves, self._outer = jax.tree.flatten(value)
        self.items, structure = jax.tree.flatten(prefix, is_leaf=is_item)
        self._inner: list[Any] | None = None
        if structure != self._outer:
            self._match_prefix(prefix, function, what, is_item or (lambda _: False))

    def _match_prefix(
        self, prefix: Tree, function: str, what: str, is_item: Callable[[Any], bool]
    ) -> None:
        items, self._outer = jax.tree.flatten(prefix, is_leaf=lambda x: x is None or is_item(x))
        try:
            subtrees = self._outer.flatten_up_to(self._value)
        except (ValueError, TypeError) as error:
            raise build(
                SpecError,
                where=function,
                given=f"{what} of structure {self._outer} for a value of structure"
                f" {jax.tree.structure(self._value)}",
                rule=f"{what} are a prefix of the value's pytree: {_first_line(error)}",
                advice=f"give one for all leaves, or {what} of the value's own structure",
            ) from None
        self._inner, self.leaves, self.items = [], [], []
        for subtree, item in zip(subtrees, items, strict=True):
            below, inner = jax.tree.flatten(subtree, is_leaf=is_number_list)
            self._inner.append(inner)
            self.leaves += below
            self.items += [item] * len(below)

    def rebuild(self, results: list[Any]) -> Tree:
        """The value's tree with `results` in place of its leaves."""
        if self._inner is None:
            return self._outer.unflatten(results)
        rest = iter(results)
        subtrees = [i.unflatten([next(rest) for _ in range(i.num_leaves)]) for i in self._inner]
        return self._outer.unflatten(subtrees)

    def path(self, number: int) -> str:
        """The key path of a leaf, such as `['params']['w']`; empty for a value that is one leaf."""
        at_lists = None if self._inner is None else is_number_list
        leaves = jax.tree_util.tree_leaves_with_path(self._value, is_leaf=at_lists)
        return jax.tree_util.keystr(leaves[number][0])


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")
