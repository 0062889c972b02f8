"""What the facts and figures of all processes come to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from . import _alike, _binding, _mesh, _room, _speed
from ._facts import Facts
from ._finding import STATUS, Finding
from ._measure import Figures


def judge(
    facts: Sequence[Facts],
    figures: Sequence[Figures],
    axes: Mapping[str, int] | None = None,
    owners: Sequence[int] | None = None,
    ignore: Iterable[str] = (),
) -> tuple[Finding, ...]:
    """All findings, the worst first.

    Args:
      facts: of all processes, in their order.
      figures: of the same, or none.
      axes: of a mesh of all devices to look at.
      owners: the process of each device of that mesh, major first; by default in JAX's own order.
      ignore: patterns of variables that may differ.
    """
    found = [
        *_alike.findings(facts, ignore),
        *_binding.findings(facts),
        *_room.findings(facts),
        *_speed.findings(facts, figures),
    ]
    if axes is not None:
        places = {of.process: of.host.machine for of in facts}
        found += _mesh.findings(axes, owners or facts[0].owners, places)
    return tuple(sorted(found, key=lambda finding: -STATUS[finding.severity]))
