"""The pytest plugin: `@pytest.mark.multiprocess` and `--hostmesh-strict`.

It is loaded in every pytest run where hostmesh is installed. So it is a package of its own, which
imports hostmesh, and with it JAX, only where a test asks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

_MARKER = (
    "multiprocess(processes=4, devices=2, timeout=None, env=None, hosts=None): run the test in "
    "every process of a local JAX cluster; `devices` is the number of CPU devices of each, or a "
    "list with one number for each; `timeout` is in seconds (default: the ini option "
    "hostmesh_timeout); `hosts` spreads the processes over so many network namespaces (Linux, root, iproute2)"
)
_COUNT = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("hostmesh")
    group.addoption(
        "--hostmesh-strict",
        action="store_true",
        help="fail where a test reads an array that several hosts would have to hold, taking each "
        "local device for a host",
    )
    group.addoption(
        "--hostmesh-hosts",
        type=int,
        metavar="N",
        help="the same, taking the local devices in N blocks for the devices of N hosts",
    )
    parser.addini("hostmesh_timeout", "seconds that a multiprocess test may take", default="60")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.pluginmanager.has_plugin("hostmesh-worker"):
        return  # in a worker the tests run as they are
    if any(item.get_closest_marker("multiprocess") for item in items):
        from hostmesh.testing._items import replace

        config.stash[_COUNT] = replace(items)


def pytest_report_collectionfinish(config: pytest.Config) -> str | None:
    if (count := config.stash.get(_COUNT, 0)) and config.getoption("usepdb", False):
        return (
            f"hostmesh: --pdb is off for the {count} multiprocess tests: "
            "their processes have no terminal. It is on for all others."
        )
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if _COUNT in item.config.stash:
        from hostmesh.testing._items import ClusterItem

        if isinstance(item, ClusterItem):
            item.write(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    if not _strict(session.config):
        return (yield)
    from hostmesh.testing._strict import guard

    with guard(session.config.getoption("hostmesh_hosts")):
        return (yield)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if not _strict(config) or config.getoption("numprocesses", None):
        return
    import jax

    if jax.device_count() < 2:  # pyright: ignore[reportUnknownMemberType]
        terminalreporter.write_line(
            "hostmesh: --hostmesh-strict has checked nothing, for want of a second device: "
            "set JAX_NUM_CPU_DEVICES=8 in the environment",
            yellow=True,
        )


def _strict(config: pytest.Config) -> bool:
    return bool(config.getoption("hostmesh_strict") or config.getoption("hostmesh_hosts"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _COUNT in session.config.stash:
        from hostmesh.testing._items import owner
        from hostmesh.testing._pool import pool

        pool.close(owner(session.config))
