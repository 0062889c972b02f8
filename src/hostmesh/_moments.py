"""Moments at which a fault on purpose may strike (`_faults`): nothing but a look where none is set.

At the bottom of the layers: whoever tells of a moment imports nothing of the faults.
"""

from __future__ import annotations

from typing import Protocol

from ._trees import Tree


class Fault(Protocol):
    """What is told of moments."""

    def step(self, number: int) -> None:
        """A step begins."""

    def call(self, what: str) -> None:
        """A call is about to be agreed on, in words that begin with its name."""

    def passed(self, name: str, tree: Tree) -> Tree:
        """A tree is passed to a collective; gives the tree to take in its place."""
        ...


fault: Fault | None = None


def step(number: int | None) -> None:
    """A step begins."""
    if fault is not None and number is not None:
        fault.step(number)


def call(what: str) -> None:
    """A call is about to be agreed on."""
    if fault is not None:
        fault.call(what)


def passed(name: str, tree: Tree) -> Tree:
    """A tree is passed to a collective."""
    return tree if fault is None else fault.passed(name, tree)
