"""Moments of a program that others are told of: a fault on purpose (`_faults`), `_sanitize`.

Nothing but a look where nobody asks. At the bottom of the layers: whoever tells of a moment imports
nothing of those that are told.
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


class Watcher(Protocol):
    """What is told of steps, and asked for words of them."""

    def step(self, number: int) -> None:
        """A step begins."""

    def in_words(self) -> str:
        """What is added to the words in which a call is agreed on."""
        ...


fault: Fault | None = None
watcher: Watcher | None = None


def step(number: int | None, *, of_all: bool = True) -> None:
    """A step begins: of all processes, or of some that may be at another one than the rest."""
    if number is not None:
        if watcher is not None and of_all:
            watcher.step(number)
        if fault is not None:
            fault.step(number)


def in_words() -> str:
    """What is added to the words in which a call is agreed on."""
    return "" if watcher is None else watcher.in_words()


def passed(name: str, tree: Tree) -> Tree:
    """A tree is passed to a collective."""
    return tree if fault is None else fault.passed(name, tree)
