"""The texts about several processes, and the verdict on their reports, without processes."""

import pickle
import signal

import pytest

from hostmesh.testing._merge import verdict
from hostmesh.testing._report import (
    Died,
    Done,
    Run,
    Stopped,
    Waiting,
    grouped,
    stack_text,
    unanswered,
)


def test_grouped_joins_texts_that_differ_in_addresses_and_process_numbers():
    texts = [
        (0, "process 0: <object at 0x7f00>"),
        (1, "other"),
        (3, "process 3: <object at 0x7fab>"),
    ]
    assert grouped(texts) == [([0, 3], "process 0: <object at 0x7f00>"), ([1], "other")]


def test_grouped_keeps_other_numbers_apart():
    assert len(grouped([(0, "assert 3 == 4"), (1, "assert 3 == 5")])) == 2


def test_unanswered_names_the_first_death_not_the_ones_that_follow():
    run = Run([Died(-signal.SIGABRT), Stopped(), Died(-signal.SIGKILL)], ["", "", ""], "after 5 s")
    assert unanswered(run) == ["process 2 died: SIGKILL (signal 9); the others were stopped"]


def test_unanswered_groups_the_stacks_of_the_waiting():
    run = Run([Waiting("at 0x1"), Died(3), Waiting("at 0x2")], ["", "", ""], "after 5 s")
    assert unanswered(run) == [
        "process 1 died: exit code 3; the others were stopped",
        "processes 0, 2 had not ended after 5 s, at:\nat 0x1",
    ]


def test_stack_text_keeps_the_frames_of_the_task_with_the_latest_last():
    dump = (
        "Thread 0x01 (most recent call first):\n"
        '  File "/usr/lib/threading.py", line 1 in wait\n\n'
        "Current thread 0x02 (most recent call first):\n"
        f'  File "{__file__}", line 1 in inner\n'
        f'  File "{__file__}", line 2 in outer\n'
        '  File "/site-packages/_pytest/python.py", line 9 in call\n'
        '  File "/src/hostmesh/testing/_worker.py", line 9 in serve\n'
        '  File "<string>", line 1 in <module>\n'
    )
    text = stack_text(dump)
    assert text.index("in outer") < text.index("in inner")
    assert '"""The texts about several processes' in text
    assert "_pytest" not in text
    assert "_worker" not in text


def test_stack_text_says_when_a_process_is_itself_stopped():
    assert "did not answer" in stack_text("")


def _done(config, *reports, warnings=()):
    data = [config.hook.pytest_report_to_serializable(config=config, report=r) for r in reports]
    failed = any(report.failed for report in reports)
    return Done(failed, True, pickle.dumps((data, list(warnings))))


def _report(outcome, longrepr=None, wasxfail=None, when="call"):
    report = pytest.TestReport("t.py::t", ("t.py", 1, "t"), {}, outcome, longrepr, when)
    if wasxfail is not None:
        report.wasxfail = wasxfail
    return report


PASSED = ("passed", None, None)
SKIPPED = ("skipped", ("t.py", 1, "Skipped: no"), None)
EXPECTED = ("skipped", "boom", "why")
UNEXPECTED = ("passed", None, "why")
STRICT = ("failed", "[XPASS(strict)] why", None)
FAILED = ("failed", "boom", None)


@pytest.mark.parametrize(
    ("reports", "outcome", "wasxfail"),
    [
        ([PASSED, PASSED], "passed", None),
        ([PASSED, FAILED], "failed", None),
        ([SKIPPED, SKIPPED], "skipped", None),
        ([SKIPPED, PASSED], "passed", None),
        ([SKIPPED, FAILED], "failed", None),
        ([EXPECTED, UNEXPECTED], "skipped", "why"),
        ([EXPECTED, STRICT], "skipped", "why"),
        ([UNEXPECTED, UNEXPECTED], "passed", "why"),
        ([STRICT, STRICT], "failed", None),
        ([EXPECTED, FAILED], "failed", None),
    ],
)
def test_verdict(pytestconfig, reports, outcome, wasxfail):
    endings = [_done(pytestconfig, _report(*report)) for report in reports]
    found = verdict(pytestconfig, Run(endings, ["", ""], "after 5 s"))
    assert (found.outcome, found.wasxfail) == (outcome, wasxfail)


def test_verdict_tells_the_phase_that_failed(pytestconfig):
    run = Run(
        [_done(pytestconfig, _report("failed", "boom", when="setup"))] * 2, ["", "x\n"], "after 5 s"
    )
    found = verdict(pytestconfig, run)
    assert found.longrepr == "processes 0, 1 in setup:\nboom"
    assert found.sections == [("Captured stdout and stderr of process 1", "x\n")]


def test_verdict_shows_the_log_once_with_its_processes(pytestconfig):
    report = _report("failed", "boom")
    report.sections.append(("Captured log call", "said"))
    run = Run([_done(pytestconfig, report)] * 2, ["", ""], "after 5 s")
    found = verdict(pytestconfig, run)
    assert found.sections == [("Captured log call of processes 0, 1", "said")]


def test_verdict_issues_each_recorded_warning_once(pytestconfig):
    warning = (UserWarning("careful"), "t.py", 3)
    run = Run(
        [_done(pytestconfig, _report("passed"), warnings=[warning])] * 2, ["", ""], "after 5 s"
    )
    with pytest.warns(UserWarning, match="careful") as record:
        verdict(pytestconfig, run)
    assert [(w.filename, w.lineno) for w in record] == [("t.py", 3)]
