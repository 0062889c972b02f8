"""From the reports of several processes on one test to one verdict."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from ._pool import Done, Run
from ._report import endings_text, grouped, processes_text

_STRICT = "[XPASS(strict)]"


@dataclass
class Verdict:
    """What the main process reports on a test."""

    outcome: Literal["passed", "failed", "skipped"]
    longrepr: Any = None
    wasxfail: str | None = None
    sections: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def write(self, report: pytest.TestReport) -> None:
        """Makes `report` say this."""
        report.outcome = self.outcome
        report.longrepr = self.longrepr
        report.sections += self.sections
        if self.wasxfail is not None:
            report.wasxfail = self.wasxfail  # type: ignore[attr-defined]


def verdict(config: pytest.Config, run: Run) -> Verdict:
    """Fails if a process failed; skips if all skipped; else an expected failure counts before a pass."""
    texts: list[tuple[int, str]] = []
    reports: list[Any] = []
    for process, ending in enumerate(run.endings):
        if not isinstance(ending, Done):
            continue
        answer = pickle.loads(ending.payload)
        if isinstance(answer, str):
            texts.append((process, answer))
            continue
        own = [config.hook.pytest_report_from_serializable(config=config, data=d) for d in answer]
        if not own:
            texts.append((process, "the test was not found in this process"))
        reports += own
        for report in own:
            if report.failed and not str(report.longrepr).startswith(_STRICT):
                when = getattr(report, "when", "collect")
                note = "" if when == "call" else f"(in {when})\n"
                texts.append((process, note + str(report.longrepr)))
    shown = grouped((p, text) for p, text in enumerate(run.outputs) if text.strip())
    sections = [(f"Captured stdout and stderr of {processes_text(p)}", t) for p, t in shown]
    parts = [f"{processes_text(p)}:\n{text}" for p, text in grouped(texts)]
    if not run.whole:
        parts.append(endings_text(run))
    if parts:
        return Verdict("failed", "\n\n".join(parts), sections=sections)
    return _without_failures(reports, sections)


def _without_failures(reports: list[Any], sections: list[tuple[str, str]]) -> Verdict:
    expected = [r for r in reports if hasattr(r, "wasxfail")]
    for report in expected:
        if report.skipped:
            return Verdict("skipped", report.longrepr, report.wasxfail, sections)
    for report in reports:
        if report.failed:
            return Verdict("failed", report.longrepr, sections=sections)
    if expected:
        return Verdict("passed", None, expected[0].wasxfail, sections)
    calls = [r for r in reports if r.when == "call" or r.skipped]
    if calls and all(r.skipped for r in calls):
        return Verdict("skipped", calls[0].longrepr, sections=sections)
    return Verdict("passed", sections=sections)
