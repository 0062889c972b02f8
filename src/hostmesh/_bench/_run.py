"""Runs claims: those of one race together, and those of one layout in one group of processes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence

from .._errors import HostmeshError
from ._claim import Claim, Race
from ._race import Settings, race
from ._result import Result, result


def run(
    claims: Sequence[Claim],
    settings: Settings,
    begins: Callable[[str], None],
    failed: Callable[[str, HostmeshError], None],
) -> list[Result]:
    """What came out, in the order of `claims`; those whose race fails are told to `failed`.

    `begins` is told the names of each race's claims as it begins.
    """
    races: dict[Race, list[Claim]] = {}
    for claim in claims:
        races.setdefault(claim.race, []).append(claim)
    found: dict[str, Result] = {}
    ordered = sorted(races, key=settings.layout, reverse=True)
    for number, of in enumerate(ordered, 1):
        several = races[of]
        title = ", ".join(claim.name for claim in several)
        begins(f"[{number}/{len(ordered)}] {title}")
        names = {
            name
            for claim in several
            for name in claim.names - ({claim.peer} if _lacks(claim) else set())
        }
        try:
            times = race(of, sorted(names), settings)
        except HostmeshError as error:
            failed(title, error)
            continue
        found.update({claim.name: result(claim, times) for claim in several})
    return [found[claim.name] for claim in claims if claim.name in found]


def _lacks(claim: Claim) -> bool:
    return claim.needs is not None and importlib.util.find_spec(claim.needs) is None
