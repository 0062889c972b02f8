"""What a look at a cluster came to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from . import _show
from ._facts import Facts
from ._finding import Finding, status_of
from ._measure import Figures
from ._mesh import Axis


@dataclass(frozen=True)
class Diagnosis:
    """What `hostmesh.doctor` found; `print(diagnosis)` shows it.

    Attributes:
      findings: what is wrong, or worth knowing, the worst first. The same on all processes.
      facts, figures: what each process told and measured, on process 0; on the others, their own.
      axes: what each axis of the mesh crosses, where one was given.
      seconds: how long the look took.

    >>> finding = Finding("warning", (3,), "a clock is off", "set it by NTP")
    >>> Diagnosis((finding,), (), (), (), 0.0).status
    1
    """

    findings: tuple[Finding, ...]
    facts: tuple[Facts, ...]
    figures: tuple[Figures, ...]
    axes: tuple[Axis, ...]
    seconds: float

    @property
    def status(self) -> int:
        """0 for a healthy cluster, 1 with warnings, 2 with errors."""
        return status_of(self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers, for JSON; of the environment the names only."""
        processes: list[Mapping[str, Any]] = []
        for facts, figures in zip(self.facts, self.figures, strict=True):
            plain = facts.plain()
            plain["environment"] = sorted(facts.environment)
            del plain["owners"]
            processes.append({**plain, "measured": figures.plain()})
        return {
            "status": self.status,
            "findings": [asdict(finding) for finding in self.findings],
            "axes": [asdict(axis) for axis in self.axes],
            "seconds": round(self.seconds, 3),
            "processes": processes,
        }

    def __str__(self) -> str:
        return _show.text(self.findings, self.facts, self.figures, self.axes, self.seconds)

    def to_json(self) -> str:
        """`to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=1)
