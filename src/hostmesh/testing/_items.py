"""The main process's side of a multiprocess test: an item that runs the test in a cluster.

The marked function is not set up here: its fixtures, marks and body are for the workers, which
have the devices. What they report is put together to one report.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ._merge import Verdict, verdict
from ._pool import Done, Run, Shape, pool
from ._run import shape_of

_OPTIONS = frozenset({"processes", "devices", "timeout", "env"})
# Conditions are for the workers to judge: they have the devices.
_JUDGED_BY_WORKERS = frozenset({"skipif", "xfail", "usefixtures"})


class ClusterItem(pytest.Item):
    """Stands in for a marked test function."""

    def __init__(self, *, function: pytest.Function, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.own_markers = list(function.own_markers)
        self.keywords.update(function.keywords)
        self.extra_keyword_matches = set(function.extra_keyword_matches)
        self._report_info = function.reportinfo()
        self._verdict: Verdict | None = None
        mark = function.get_closest_marker("multiprocess")
        assert mark is not None
        if mark.args or not _OPTIONS.issuperset(mark.kwargs):
            raise pytest.UsageError(
                f"{self.nodeid}: multiprocess{mark.args or ''}{mark.kwargs or ''}: "
                f"takes keywords only, of {', '.join(sorted(_OPTIONS))}"
            )
        options = dict(mark.kwargs)
        timeout = options.pop("timeout", None)
        self._timeout = float(timeout or self.config.getini("hostmesh_timeout"))
        if "devices" in options and not isinstance(options["devices"], int):
            options.setdefault("processes", len(options["devices"]))
        self._shape = shape_of(**options, owner=f"pytest {id(self.config)}")

    def iter_markers(self, name: str | None = None) -> Iterator[pytest.Mark]:
        return iter(()) if name in _JUDGED_BY_WORKERS else super().iter_markers(name)

    def reportinfo(self) -> Any:
        return self._report_info

    def runtest(self) -> None:
        self._verdict = None
        run = _session(self.config, self._shape)
        if run is None:
            directory = _directory(self.config) / f"{abs(hash(self.nodeid)):x}"
            message = ("test", self.nodeid, str(self.path), str(directory))
            run = pool.run(self._shape, message, self._timeout)
        self._verdict = verdict(self.config, run)

    def hostmesh_complete(self, report: pytest.TestReport) -> None:
        """Makes pytest's report on `runtest` the report on the cluster."""
        if self._verdict is not None:
            self._verdict.write(report)


def replace(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts a `ClusterItem` in the place of each marked test function."""
    config.hostmesh_close = pool.close  # type: ignore[attr-defined]
    for i, item in enumerate(items):
        if isinstance(item, pytest.Function) and item.get_closest_marker("multiprocess"):
            parent = item.parent
            assert parent is not None
            items[i] = ClusterItem.from_parent(parent, name=item.name, function=item)


def _session(config: pytest.Config, shape: Shape) -> Run | None:
    """Has a cluster of this shape with pytest sessions; what went wrong if that cannot be."""
    if pool.has(shape):
        return None
    message = ("session", _options(config), list(config.args), str(config.invocation_params.dir))
    run = pool.run(shape, message, 60.0)
    if run.whole and not any(isinstance(e, Done) and e.failed for e in run.endings):
        return None
    pool.drop(shape)
    return run


def _options(config: pytest.Config) -> dict[str, Any]:
    """The options of this run that hold in the workers too."""
    options = {name: value for name, value in vars(config.option).items() if _pickles(value)}
    return options | {
        "capture": "no",
        "maxfail": 0,
        "keyword": "",
        "markexpr": "",
        "deselect": None,
        "lf": False,
        "failedfirst": False,
        "collectonly": False,
        "rootdir": str(config.rootpath),
        "inifilename": str(config.inipath) if config.inipath else None,
        "basetemp": tempfile.mkdtemp(prefix="hostmesh-"),
    }


def _pickles(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True


def _directory(config: pytest.Config) -> Path:
    return Path(tempfile.gettempdir()) / f"hostmesh-{id(config)}"
