"""From the times of rounds to medians, spreads and ratios, and whether a claim holds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ._claim import Claim


@dataclass(frozen=True)
class Spread:
    """The median over rounds, and the 10th and 90th percentile."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Result:
    """What came out for a claim, in seconds. Without a peer nothing of the peer is known.

    `ratio` is of medians over `rounds`; its `low` and `high` are of the rounds' own ratios, in which a load that
    comes and goes meets both.
    """

    claim: Claim
    ours: Spread
    peer: Spread | None
    bounds: tuple[tuple[str, float], ...]
    ratio: Spread | None
    rounds: int

    @property
    def holds(self) -> bool | None:
        """Whether the ratio reaches the bar; `None` where there is none, or no peer."""
        if self.ratio is None or self.claim.bar is None:
            return None
        return self.ratio.median >= self.claim.bar

    @property
    def why(self) -> str | None:
        """What is to be said of a bar that was missed, or of a peer that is not there."""
        if self.peer is None:
            return f"{self.claim.peer} is not installed"
        if self.holds is False:
            return self.claim.why or "not known; the machine may have been busy"
        return None


def spread(values: Sequence[float]) -> Spread:
    """The median and the two percentiles of some values.

    >>> spread([5.0, 1.0, 2.0, 3.0, 4.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0])
    Spread(median=6.0, low=2.0, high=10.0)
    """
    low, median, high = (float(of) for of in np.percentile(values, (10, 50, 90)))
    return Spread(median, low, high)


def result(claim: Claim, times: Mapping[str, Sequence[float]]) -> Result:
    """What a race's times say of a claim."""
    ours, theirs = times[claim.ours], times.get(claim.peer)
    ratio = None
    if theirs is not None:
        rounds = spread([their / our for their, our in zip(theirs, ours, strict=True)])
        ratio = Spread(spread(theirs).median / spread(ours).median, rounds.low, rounds.high)
    return Result(
        claim,
        spread(ours),
        None if theirs is None else spread(theirs),
        tuple((name, spread(times[name]).median) for name in claim.bounds if name in times),
        ratio,
        len(ours),
    )
