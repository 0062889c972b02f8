"""The pytest session inside a worker: the same tests, collected and run where the devices are.

Each worker holds one session for as long as its cluster lives. It collects a file when the first
of its tests is asked for, and runs each test by pytest's own protocol, so that fixtures,
parametrization, marks and rewritten assertions are what they are anywhere else.
"""

from __future__ import annotations

import os
import pickle
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from ._worker import Answer, call, reply, serve

NAME = "hostmesh-worker"

# Plugins that report, talk to a terminal or start processes: the main process has those.
_OFF = ("terminal", "junitxml", "debugging", "xdist", "xdist.looponfail", "pytest_cov")


def host(
    connection: Connection[Any, Any], options: dict[str, Any], args: list[str], directory: str
) -> Answer | None:
    """Starts pytest here and serves `connection` from inside until it ends."""
    runner = Runner(connection)
    try:
        os.chdir(directory)
        off = [word for name in _OFF for word in ("-p", f"no:{name}")]
        config = pytest.Config.fromdictargs(options, [*off, *args])
        config.pluginmanager.register(runner, NAME)
        config.hook.pytest_cmdline_main(config=config)
    except BaseException:
        if runner.started:
            raise
        return True, pickle.dumps(traceback.format_exc())
    return None if runner.started else (True, pickle.dumps("pytest did not start in the worker"))


class Runner:
    """The plugin that makes a session wait for tests to run instead of running all."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self.started = False
        self._connection = connection
        self._items: dict[str, pytest.Item] = {}
        self._collected: set[str] = set()
        self._reports: list[pytest.TestReport | pytest.CollectReport] = []
        self._directory = Path()

    @pytest.fixture
    def tmp_path(self) -> Path:
        """A directory of this test's, the same in all processes of the cluster."""
        self._directory.mkdir(parents=True, exist_ok=True)
        return self._directory

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> bool:
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        def handle(_: object, message: tuple[Any, ...]) -> Answer:
            kind, *data = message
            return call(*data) if kind == "call" else self._test(session, *data)

        self.started = True
        reply(self._connection, (False, pickle.dumps(None)))
        serve(self._connection, handle)
        return True

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        self._items[item.nodeid] = item

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._reports.append(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)

    def _test(self, session: pytest.Session, nodeid: str, path: str, directory: str) -> Answer:
        """Runs one test; the answer is its reports."""
        self._reports = []
        self._directory = Path(directory)
        if path not in self._collected:
            session.perform_collect([path])
            self._collected.add(path)
        if (item := self._items.get(nodeid)) is not None:
            # Without a next item all fixtures of the test end with it, whatever their scope.
            item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
        hook = session.config.hook
        data = [
            hook.pytest_report_to_serializable(config=session.config, report=report)
            for report in self._reports
        ]
        failed = not data or any(report.failed for report in self._reports)
        return failed, pickle.dumps(data)
