"""From the reports of several processes on one test to one verdict."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ._report import Done, Run, grouped, outputs, processes_text, unanswered

if TYPE_CHECKING:
    import pytest

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
    """The verdict on a run, in this order: a process that failed or did not end, an expected
    failure, an unexpected pass, a skip where all skipped, a pass.

    Warnings that the processes recorded are issued again, for this process's pytest to record.
    """
    failures: list[tuple[int, str]] = []
    reports: list[Any] = []
    recorded: dict[tuple[str, str, int], Warning] = {}
    for process, ending in enumerate(run.endings):
        if not isinstance(ending, Done):
            continue
        answer = pickle.loads(ending.payload)
        if isinstance(answer, str):
            failures.append((process, ":\n" + answer))
        elif answer is not None:
            for data in answer[0]:
                report = config.hook.pytest_report_from_serializable(config=config, data=data)
                reports.append(report)
                if report.failed and not report.longreprtext.startswith(_STRICT):
                    failures.append((process, _failure_text(report)))
            recorded |= {(str(w), *place): w for w, *place in answer[1]}
    for (_, file, line), warning in recorded.items():
        warnings.warn_explicit(warning, None, file, line)
    sections = [
        (f"Captured stdout and stderr of {processes_text(p)}", text) for p, text in outputs(run)
    ]
    texts = [f"{processes_text(p)}{text}" for p, text in grouped(failures)] + unanswered(run)
    if texts:
        return Verdict("failed", "\n\n".join(texts), sections=sections)
    return _without_failures(reports, sections)


def _failure_text(report: Any) -> str:
    """What follows the processes' numbers: phase and message on their line, then the traceback."""
    crash = getattr(report.longrepr, "reprcrash", None)
    message = crash.message.splitlines()[0] if crash is not None and crash.message else ""
    phase = getattr(report, "when", "collect")
    text: str = report.longreprtext
    if crash is not None and not text.startswith((">", "E")):
        text = "    " + text  # pytest strips the whole text, and with it this line's indentation
    in_phase = "" if phase == "call" else f" in {phase}"
    return f"{in_phase}: {message}".rstrip(" ") + f"\n{text}"


def _without_failures(reports: list[Any], sections: list[tuple[str, str]]) -> Verdict:
    def one(reports: list[Any], outcome: Literal["passed", "failed", "skipped"]) -> Verdict:
        first = reports[0]
        return Verdict(outcome, first.longrepr, getattr(first, "wasxfail", None), sections)

    marked = [report for report in reports if hasattr(report, "wasxfail")]
    if expected := [report for report in marked if report.skipped]:
        return one(expected, "skipped")
    if strict := [report for report in reports if report.failed]:
        return one(strict, "failed")
    if marked:
        return one(marked, "passed")
    ran = [report for report in reports if report.skipped or report.when == "call"]
    if ran and all(report.skipped for report in ran):
        return one(ran, "skipped")
    return Verdict("passed", sections=sections)
