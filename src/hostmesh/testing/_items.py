"""The main process's side of a multiprocess test: an item that has the test run in a cluster.

The marked function is not set up here: its fixtures, conditions and body are for the workers,
which have the devices. Their reports become one report.
"""

from __future__ import annotations

import itertools
import pickle
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .._errors import ClusterError, SpecError
from ._merge import Verdict, verdict
from ._pool import START_TIMEOUT, pool
from ._run import shape_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._report import Run

_OPTIONS = ("processes", "devices", "timeout", "env", "hosts")
_JUDGED_BY_WORKERS = ("skipif", "xfail", "usefixtures")
# Options whose work is done in the main process, as they are when not given.
_KEPT_HERE: dict[str, Any] = {
    **dict.fromkeys(("keyword", "markexpr"), ""),
    **dict.fromkeys(("collectonly", "lf", "failedfirst", "stepwise"), False),
    **dict.fromkeys(("looponfail", "usepdb", "trace", "hostmesh_strict"), False),
    **dict.fromkeys(("setuponly", "setupshow", "setupplan"), False),
    **dict.fromkeys(("deselect", "numprocesses", "xmlpath", "hostmesh_hosts"), None),
    **dict.fromkeys(("tx", "cov_source"), ()),
    "capture": "no",
    "dist": "no",
    "maxfail": 0,
}
_BASE = pytest.StashKey[Path]()
_number = itertools.count()


class ClusterItem(pytest.Item):
    """Stands in for a marked test function."""

    def __init__(self, *, function: pytest.Function, **kwargs: Any) -> None:
        super().__init__(**kwargs)  # pyright: ignore[reportUnknownMemberType]
        self.own_markers = list(function.own_markers)
        self.keywords.update(function.keywords)
        self.extra_keyword_matches = set(function.extra_keyword_matches)
        self._info = function.reportinfo()
        # As collected in a worker: xdist may add a group's name to an item's own.
        self._name_there = f"{function.parent and function.parent.nodeid}::{function.name}"
        self._verdict: Verdict | None = None
        mark = function.get_closest_marker("multiprocess")
        assert mark is not None
        if mark.args or not set(mark.kwargs) <= set(_OPTIONS):
            given = ", ".join([*map(repr, mark.args), *mark.kwargs])
            raise pytest.UsageError(
                f"{self.nodeid}: multiprocess({given}): the options are {', '.join(_OPTIONS)}, "
                "by keyword"
            )
        options = dict(mark.kwargs)
        try:
            limit = options.pop("timeout", None) or self.config.getini("hostmesh_timeout")
            self._timeout = float(limit)
            self._shape = shape_of(**options, owner=owner(self.config))
        except (SpecError, ValueError) as error:
            raise pytest.UsageError(f"{self.nodeid}: {error}") from None

    def iter_markers(self, name: str | None = None) -> Iterator[pytest.Mark]:
        """As everywhere, without the conditions that only a process with the devices can judge."""
        return iter(()) if name in _JUDGED_BY_WORKERS else super().iter_markers(name)

    def reportinfo(self) -> Any:
        return self._info

    def runtest(self) -> None:
        # A failure is written into the report, not raised: nothing here is to be debugged.
        self._verdict = None
        try:
            self._verdict = verdict(self.config, self._in_cluster())
        except ClusterError as error:
            self._verdict = Verdict("failed", str(error))

    def write(self, report: pytest.TestReport) -> None:
        """Makes pytest's report on `runtest` the report on the processes."""
        if report.when == "call" and self._verdict is not None:
            self._verdict.write(report)

    def _in_cluster(self) -> Run:
        """The run of this test, or of what comes before it where that failed."""
        run = None
        if not pool.has(self._shape):
            run = pool.run(self._shape, _session(self.config), START_TIMEOUT)
        if run is None or run.passed:
            run = pool.run(self._shape, ("collect", str(self.path)), START_TIMEOUT)
        if run.passed:
            message = ("test", self._name_there, str(self._directory()))
            run = pool.run(self._shape, message, self._timeout)
        return run

    def _directory(self) -> Path:
        name = re.sub(r"\W", "_", self.name)[:30]
        return _base(self.config) / f"{name}{next(_number)}"


def owner(config: pytest.Config) -> str:
    """The name of this pytest run's clusters: their sessions have its options."""
    return f"pytest {id(config)}"


def replace(items: list[pytest.Item]) -> int:
    """Puts a `ClusterItem` in the place of each marked test function; returns their number."""
    count = 0
    for i, item in enumerate(items):
        if isinstance(item, pytest.Function) and item.get_closest_marker("multiprocess"):
            assert item.parent is not None
            items[i] = ClusterItem.from_parent(  # pyright: ignore[reportUnknownMemberType]
                item.parent, name=item.name, nodeid=item.nodeid, function=item
            )
            count += 1
    return count


def _session(config: pytest.Config) -> tuple[Any, ...]:
    """The task that opens a session in a worker, with the options of this run that hold there."""
    options = {name: value for name, value in vars(config.option).items() if _pickles(value)}
    private = tempfile.mkdtemp(dir=_base(config), prefix="session")
    options |= _KEPT_HERE
    options |= {
        "rootdir": str(config.rootpath),
        "inifilename": str(config.inipath) if config.inipath else None,
        "basetemp": f"{private}/basetemp",
        "override_ini": [*(options.get("override_ini") or ()), f"cache_dir={private}/cache"],
    }
    return "session", options, list(config.args), str(config.invocation_params.dir)


def _base(config: pytest.Config) -> Path:
    """The directory for this run's files, next to those of pytest's own `tmp_path`."""
    if _BASE not in config.stash:
        factory = getattr(config, "_tmp_path_factory", None)
        config.stash[_BASE] = (
            Path(tempfile.mkdtemp(prefix="hostmesh-"))
            if factory is None
            else factory.mktemp("multiprocess")
        )
    return config.stash[_BASE]


def _pickles(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True
