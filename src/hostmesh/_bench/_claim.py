"""What a claim is: a sentence, a race that measures it, and the ratio that it allows. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# What is raced, by name. Each is called in all processes at once.
Contestants = dict[str, Callable[[], Any]]


@dataclass(frozen=True)
class Race:
    """Contestants that are called in turns, round by round, in one group of processes.

    `contestants` is called once in every process, with an empty folder that all of them see, and
    leaves out who is not installed. In a round each of them is called `calls` times in a row: out
    of a barrier processes come apart by some milliseconds. `layout`, processes and devices of each,
    is for a race that means nothing on another one than its own.
    """

    contestants: Callable[[Path], Contestants]
    calls: int = 1
    layout: tuple[int, int] | None = None


@dataclass(frozen=True)
class Claim:
    """hostmesh (the contestant `ours`) against a peer, and what no way can do without.

    `bar` is the smallest ratio, time of the peer to that of hostmesh, that the claim allows; `None`
    claims nothing. `bounds` are contestants that do only what must be done: one copy, one read.
    `needs` is a module that the peer takes, and `why` what is known of a bar that may be missed.
    """

    name: str
    sentence: str
    race: Race
    peer: str
    bar: float | None = None
    bounds: tuple[str, ...] = ()
    ours: str = "hostmesh"
    needs: str | None = None
    why: str | None = None

    @property
    def names(self) -> set[str]:
        """The contestants that the claim is about."""
        return {self.ours, self.peer, *self.bounds}
