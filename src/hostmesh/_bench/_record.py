"""Results as JSON, with the machine and the versions that they were measured on."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .. import _machine
from .._version import __version__
from ._race import Settings
from ._result import Result

SCHEMA = 1


@dataclass(frozen=True)
class Point:
    """One place of a curve: seconds of hostmesh, the peer and the bound at `x`."""

    x: int
    ours: float
    peer: float | None
    bound: float | None


@dataclass(frozen=True)
class Drawn:
    """A curve that was measured: over processes, bytes, leaves or devices."""

    name: str
    title: str
    x: str
    peer: str
    bound: str | None
    points: tuple[Point, ...]


def record(
    results: Sequence[Result],
    curves: Sequence[Drawn],
    settings: Settings,
    load: float,
    accelerators: Sequence[str],
) -> dict[str, Any]:
    """All that is known of a run, for programs."""
    return {
        "schema": SCHEMA,
        "measured_by": "hostmesh bench",
        "date": datetime.date.today().isoformat(),
        "machine": {
            "cpu": _cpu(),
            "cores": os.cpu_count() or 0,
            "memory_bytes": _machine.memory()[0],
            "load": round(load, 2),
            "accelerators": list(accelerators),
        },
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy")},
            "hostmesh": __version__,
        },
        "layout": {"processes": settings.processes, "devices": settings.devices},
        "rounds": settings.rounds,  # at most; a claim has its own number
        "claims": [_claim(of) for of in results],
        "curves": [asdict(curve) for curve in curves],
    }


def _claim(of: Result) -> dict[str, Any]:
    claim, ratio = of.claim, of.ratio
    return {
        "name": claim.name,
        "sentence": claim.sentence,
        "unit": "s",
        "rounds": of.rounds,
        "ours": asdict(of.ours),
        "peer": None if of.peer is None else {"name": claim.peer, **asdict(of.peer)},
        "bounds": [{"name": name, "median": median} for name, median in of.bounds],
        "ratio": None if ratio is None else ratio.median,
        "ratio_low": None if ratio is None else ratio.low,
        "ratio_high": None if ratio is None else ratio.high,
        "bar": claim.bar,
        "holds": of.holds,
        "why": of.why,
    }


def _cpu() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
