"""The pytest plugin: `@pytest.mark.multiprocess` and `--hostmesh-strict`.

Imports nothing heavy: it is loaded in every pytest run where hostmesh is installed.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

_MARKER = (
    "multiprocess(processes=4, devices=2, timeout=None, env=None): run the test in every process "
    "of a local JAX cluster; `devices` is a number of CPU devices for each, or a list"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("hostmesh_timeout", "seconds a multiprocess test may take", default="60")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.pluginmanager.has_plugin("hostmesh-worker"):
        return  # a worker runs the tests themselves
    if any(item.get_closest_marker("multiprocess") for item in items):
        from ._items import replace

        replace(config, items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[pytest.TestReport]:
    report = yield
    if call.when == "call" and (complete := getattr(item, "hostmesh_complete", None)):
        complete(report)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (close := getattr(session.config, "hostmesh_close", None)) is not None:
        close()
