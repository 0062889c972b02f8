"""`hostmesh doctor`: looks at the cluster that it is started in, and ends with what it found.

A missing process is named before JAX starts, which would abort; a step that hangs ends the process
with the names of those that are behind.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from pathlib import Path

import click
from rich.console import Console

from .. import _jax
from .._cluster import member_from_environment
from .._errors import HostmeshError
from .._initialize import Cluster, expected, initialize
from .._plan_command import mesh_axes
from .._verdict import name_processes
from .._watch._merge import merge
from . import _examine, _rollcall, _show, _trace
from ._diagnosis import Diagnosis

_SHUTDOWN = 5.0  # seconds to wait at the end for who did not come
_BEYOND = 30.0  # seconds that a step may take beyond the time-out
_PREFIX = 4  # what hostmesh run puts before each line
_FAREWELL = 2.0  # seconds that processes which give up leave each other to say so
_STEPS, _ALIVE = "hostmesh/doctor/steps/", "hostmesh/doctor/alive/"


@click.command()
@click.option("--mesh", metavar="AXIS=SIZE,...", help="Look at a mesh of all devices, too.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    show_default=True,
    metavar="S",
    help="Seconds that each step waits for the other processes.",
)
@click.option(
    "--ignore", multiple=True, metavar="NAME", help="A variable that may differ; or a pattern, A_*."
)
@click.option("--json", "as_json", is_flag=True, help="All facts and figures, for programs.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write these as JSON to a file, too.",
)
@click.option("--plain", is_flag=True, help="No colour, ASCII only.")
@click.option(
    "--import-trace",
    "package",
    metavar="PACKAGE",
    help="Only tell which import starts a JAX backend when PACKAGE is imported.",
)
@click.argument(
    "files", nargs=-1, metavar="[FILE]...", type=click.Path(exists=True, dir_okay=False)
)
def command(
    files: tuple[str, ...],
    mesh: str | None,
    timeout: float,
    ignore: tuple[str, ...],
    as_json: bool,
    output: Path | None,
    plain: bool,
    package: str | None,
) -> None:
    """Look for what is wrong with a cluster, before a long job.

    Start it as the job is started, in every process. Process 0 shows what was found, and ends with
    0 for a healthy cluster, 1 for warnings and 2 for errors; alone it looks at one process. With FILEs,
    the timelines that a watchdog wrote in several processes, it tells where these parted, and ends
    with 1 if they did; of files of several runs it reads those of the newest.

    \b
    hostmesh run -n 4 -d 2 -- hostmesh doctor
    srun hostmesh doctor --mesh data=8,model=4
    hostmesh doctor --import-trace my_package
    hostmesh doctor /tmp/hostmesh-watchdog-0/*/timeline.json
    """
    if files:
        _tell(files)
        return
    if package is not None:
        sys.exit(_trace.trace(package))
    progress = _Watched(timeout)
    try:
        axes = None if mesh is None else dict(mesh_axes(mesh))
        _join(timeout, progress)
        report = _examine.examine(axes, timeout, ignore, progress.step)
    except HostmeshError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    finally:
        progress.end()
    if initialize().process:
        return  # process 0 speaks for all
    if output is not None:
        output.write_text(report.to_json() + "\n")
    if as_json:
        click.echo(report.to_json())
    else:
        _show_diagnosis(report, plain)
    sys.exit(report.status)


def _tell(files: tuple[str, ...]) -> None:
    try:
        merged = merge(files)
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    for sentence in merged.sentences:
        click.echo(sentence)
    sys.exit(int(merged.parted))


def _join(timeout: float, progress: _Watched) -> None:
    place = expected()
    if place is not None and place.coordinator and not _jax.backends_started():
        progress.show(place.process, f"waiting for {place.processes} processes")
        _rollcall.call(
            place.process,
            place.processes,
            place.coordinator,
            timeout,
            only_there=place.detector == "hostmesh run",
        )
    initialize(timeout=timeout, shutdown_timeout=_SHUTDOWN)


def _show_diagnosis(report: Diagnosis, plain: bool) -> None:
    console = Console(no_color=plain or None, highlight=False, emoji=False)
    parts = (report.findings, report.facts, report.figures, report.axes, report.seconds)
    ascii_only = plain or not (sys.stdout.encoding or "").lower().startswith("utf")
    if console.is_terminal:
        _show.show(console, *parts, ascii_only=ascii_only)
        return
    width = 80 - _PREFIX * (member_from_environment() is not None)
    click.echo(_show.text(*parts, width=width, ascii_only=ascii_only))


class _Watched:
    """Says which step begins, and ends the process where one hangs: in a collective, nothing else can."""

    def __init__(self, timeout: float) -> None:
        self._limit = timeout + _BEYOND
        self._progress = _examine.Progress()
        self._number = 0
        self._timer: threading.Timer | None = None

    def show(self, process: int, what: str) -> None:
        if process == 0:
            self._progress.show(what)

    def step(self, what: str) -> None:
        self.end()
        place = initialize()
        self.show(place.process, what)
        self._number += 1
        if (store := _jax.store()) is not None:
            store.set_once(f"{_STEPS}{place.process}/{self._number:02}", what.encode())
        self._timer = threading.Timer(self._limit, self._hangs, (what, place))
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _hangs(self, what: str, place: Cluster) -> None:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)  # pyright: ignore[reportPrivateUsage]
        at = "" if frame is None else traceback.format_list(traceback.extract_stack(frame)[-1:])[0]
        sys.stderr.write(
            f"error: {what} did not end within {self._limit:g} s; {self._behind(place)}. Do: look at"
            f" the links to these, and at what they do (py-spy dump --pid). Here, process"
            f" {place.process} is at:\n{at}"
        )
        sys.stderr.flush()
        if place.process == 0:
            time.sleep(_FAREWELL)  # the coordinator goes with it, and JAX aborts who is left
        os._exit(2)

    def _behind(self, place: Cluster) -> str:
        """Who has come less far; or, as all are in one step, who no longer runs Python."""
        store = _jax.store()
        if store is None:
            return "who is behind is not known"
        store.set_once(f"{_ALIVE}{place.process}", b"")
        time.sleep(_FAREWELL)  # all began the step together, to a second or so
        everyone = set(range(place.processes))
        if stopped := everyone - set(map(int, store.list(_ALIVE))):
            return f"{name_processes(stopped)} did not answer"
        reached = dict.fromkeys(everyone, 0)
        for key in store.list(_STEPS):
            process, number = map(int, key.split("/"))
            reached[process] = max(reached[process], number)
        behind = [p for p, number in reached.items() if number < max(reached.values())]
        return f"{name_processes(behind)} had not got so far" if behind else "all are in it"
