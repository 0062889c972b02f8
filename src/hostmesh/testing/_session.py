"""The pytest session inside a worker: the same tests, collected and run where the devices are.

Each worker holds one session for as long as its cluster lives. It collects a file when the first
of its tests is asked for, and runs each test by pytest's own protocol, so that fixtures,
parametrization, marks and rewritten assertions are what they are anywhere else.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .._explain import annotate
from ._state import State
from ._worker import DONE, Answer, call, error_text, reply, sanitized, serve

if TYPE_CHECKING:
    import warnings
    from collections.abc import Generator
    from multiprocessing.connection import Connection

NAME = "hostmesh-worker"


def host(
    connection: Connection[Any, Any], options: dict[str, Any], args: list[str], directory: str
) -> Answer | None:
    """Starts pytest here, and serves `connection` from inside it until that ends."""
    runner = Runner(connection)
    sys.breakpointhook = _no_breakpoint
    try:
        os.chdir(directory)
        off = ["-p", "no:debugging"]
        # This process runs hostmesh already, which an installed plugin's files are not meant to be.
        off += ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
        # What pytest has to say, the main process says; what tests print goes on to the output.
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            config = pytest.Config.fromdictargs(options, [*off, *args])
            config.pluginmanager.register(runner, NAME)
            config.hook.pytest_cmdline_main(config=config)
    except BaseException as error:
        if runner.started:
            raise
        return Answer(True, False, pickle.dumps(error_text(error)))
    if runner.started:
        return None
    return Answer(True, False, pickle.dumps("pytest did not start; see the output"))


class Runner:
    """The plugin that makes a session wait for tests to run instead of running all."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self.started = False
        self._connection = connection
        self._items: dict[str, pytest.Item] = {}
        self._collected: set[str] = set()
        self._reports: list[pytest.TestReport | pytest.CollectReport] = []
        self._warnings: list[tuple[Warning, str, int]] = []
        self._directory = Path()

    @pytest.fixture
    def tmp_path(self) -> Path:
        """A directory of this test's, the same in all processes of the cluster."""
        self._directory.mkdir(parents=True, exist_ok=True)
        return self._directory

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> bool:
        return True  # nothing yet

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        def collect(path: str) -> Answer:
            return self._collect(session, path)

        def test(nodeid: str, directory: str) -> Answer:
            return self._test(session, nodeid, Path(directory))

        sys.stdout = sys.__stdout__  # the terminal reporter has kept the one from before
        self.started = True
        reply(self._connection, DONE)
        serve(self._connection, {"call": call, "collect": collect, "test": test})
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        try:
            return (yield)
        except Exception as error:
            annotate(error)
            raise

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        self._items[item.nodeid] = item

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._reports.append(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage) -> None:
        warning = warning_message.message
        if isinstance(warning, Warning):
            self._warnings.append((warning, warning_message.filename, warning_message.lineno))

    def _collect(self, session: pytest.Session, path: str) -> Answer:
        """Collects the tests of one file, once."""
        if path in self._collected:
            return DONE
        self._reports, self._warnings = [], []
        try:
            session.perform_collect([path])
        except BaseException as error:
            return Answer(True, False, pickle.dumps(error_text(error)))
        if not self._reports:
            self._collected.add(path)
        return self._answer(session.config, clean=True)

    def _test(self, session: pytest.Session, nodeid: str, directory: Path) -> Answer:
        """Runs one test; the answer is its reports and warnings."""
        self._reports, self._warnings, self._directory = [], [], directory
        if (item := self._items.get(nodeid)) is None:
            text = f"the test was not found in this process, which collected other parameters:\n{nodeid}"
            return Answer(True, True, pickle.dumps(text))
        before = State.now()
        try:
            # Without a next item all fixtures of the test end with it, whatever their scope.
            with sanitized():
                item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
        except BaseException as error:  # pytest.exit, or an error in a plugin
            return Answer(True, False, pickle.dumps(error_text(error)))
        return self._answer(session.config, clean=before.restore())

    def _answer(self, config: pytest.Config, *, clean: bool) -> Answer:
        serializable = config.hook.pytest_report_to_serializable
        reports = [serializable(config=config, report=report) for report in self._reports]
        failed = any(report.failed for report in self._reports)
        try:
            payload = pickle.dumps((reports, self._warnings))
        except Exception:
            named = [(RuntimeWarning(repr(w)), *place) for w, *place in self._warnings]
            payload = pickle.dumps((reports, named))
        return Answer(failed, clean, payload)


def _no_breakpoint(*_: object, **__: object) -> None:
    raise RuntimeError(
        "breakpoint(): a process of a multiprocess test has no terminal to debug on; "
        "print instead (the output of each process is in the failure's report)"
    )
