"""A finding, and processes grouped by equal values. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from .._verdict import groups, name_processes

Severity = Literal["note", "warning", "error"]

# What a severity makes of the exit status.
STATUS: dict[Severity, int] = {"note": 0, "warning": 1, "error": 2}

_SHOWN = 5  # groups of a finding; more say no more


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or worth knowing.

    Attributes:
      severity: `"error"` for what breaks or hangs a job, `"warning"` for what may or slows it,
        `"note"` for what changes no exit status.
      who: the processes that it is about; empty where it is about the cluster.
      what: what was found, with its numbers.
      remedy: what to do.
    """

    severity: Severity
    who: tuple[int, ...]
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.what}. Do: {self.remedy}"


def grouped(values: Mapping[int, Hashable]) -> str:
    """Values in words, each behind the processes that have it.

    >>> grouped({0: "0.10.2", 1: "0.10.2", 2: "0.10.2", 3: "0.10.1"})
    'processes 0-2: 0.10.2; process 3: 0.10.1'
    """
    found = groups(values)
    words = [f"{name_processes(who)}: {value}" for value, who in list(found.items())[:_SHOWN]]
    return "; ".join(words) + f"; and {len(found) - _SHOWN} more values" * (len(found) > _SHOWN)


def outside_largest(values: Mapping[int, Hashable]) -> tuple[int, ...]:
    """The processes that have another value than most.

    >>> outside_largest({0: 8, 1: 4, 2: 8})
    (1,)
    """
    _, *others = groups(values).values()
    return tuple(sorted(process for who in others for process in who))


def status_of(findings: Iterable[Finding]) -> int:
    """The exit status: 0 without warnings, 1 with, 2 with errors."""
    return max((STATUS[finding.severity] for finding in findings), default=0)
