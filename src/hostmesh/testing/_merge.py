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
    written = [("Captured stdout and stderr", p, text) for p, text in outputs(run)]
    logged: dict[str, list[tuple[int, str]]] = {}
    for process, ending in enumerate(run.endings):
        if not isinstance(ending, Done):
            continue
        answer = pickle.loads(ending.payload)
        if isinstance(answer, str):
            failures.append((process, ":\n" + answer))
        elif answer is not None:
            own = [_report(config, data) for data in answer[0]]
            reports += own
            failures += [(process, _failure_text(report)) for report in own if _failed(report)]
            for name, text in own[-1].sections if own else ():
                logged.setdefault(name, []).append((process, text))
            recorded |= {(str(w), *place): w for w, *place in answer[1]}
    for (_, file, line), warning in recorded.items():
        warnings.warn_explicit(warning, None, file, line)
    written += [(name, p, text) for name, said in logged.items() for p, text in grouped(said)]
    sections = [(f"{name} of {processes_text(p)}", text) for name, p, text in written]
    parts = [f"{processes_text(p)}{text}" for p, text in grouped(failures)] + unanswered(run)
    if parts:
        return Verdict("failed", "\n\n".join(parts), sections=sections)
    return _without_failures(reports, sections)


def _report(config: pytest.Config, data: dict[str, Any]) -> Any:
    return config.hook.pytest_report_from_serializable(config=config, data=data)


def _failed(report: Any) -> bool:
    """Whether a report is on a failure of the process, not of what a mark expects of the test."""
    return report.failed and not report.longreprtext.startswith(_STRICT)


def _failure_text(report: Any) -> str:
    """What follows the processes' numbers: phase and message on their line, then the traceback."""
    crash = getattr(report.longrepr, "reprcrash", None)
    message = crash.message.splitlines()[0] if crash is not None and crash.message else ""
    phase = getattr(report, "when", "collect")
    text: str = report.longreprtext
    if "\n>" in text and not text.startswith("E"):
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
