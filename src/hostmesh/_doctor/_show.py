"""The report in tables, for 80 columns and less, with or without a terminal."""

from __future__ import annotations

import io
from collections.abc import Callable, Hashable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .._verdict import groups, name_processes
from ._binding import hosts
from ._facts import Facts
from ._finding import Finding, status_of
from ._measure import Figures
from ._mesh import Axis
from ._units import duration, rate, size

_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}
_VERDICTS = ("healthy", "warnings", "errors")
_SHOWN = 32  # processes that get a row


def text(
    findings: Sequence[Finding],
    facts: Sequence[Facts],
    figures: Sequence[Figures],
    axes: Sequence[Axis],
    seconds: float,
    *,
    width: int = 80,
    ascii_only: bool = False,
) -> str:
    """The report without colour, in 80 columns or another width."""
    output = io.StringIO()
    console = Console(file=output, width=width, no_color=True, highlight=False, emoji=False)
    show(console, findings, facts, figures, axes, seconds, ascii_only=ascii_only)
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines())


def show(
    console: Console,
    findings: Sequence[Finding],
    facts: Sequence[Facts],
    figures: Sequence[Figures],
    axes: Sequence[Axis],
    seconds: float,
    *,
    ascii_only: bool,
) -> None:
    """Prints the report: what there is, what was measured, and at the end what is wrong."""
    style = box.ASCII if ascii_only else box.SIMPLE_HEAD
    for table in (_cluster(facts), _machines(facts), _processes(figures), _collectives(figures)):
        if table is not None:
            table.box = style
            console.print(table)
    for axis in axes:
        console.print(f"  mesh axis {axis.name}={axis.size}: {axis}", markup=False)
    if axes:
        console.print()
    show_findings(console, findings)
    status = status_of(findings)
    count = facts[0].processes
    which = f"{count} process{'es' * (count > 1)}"
    style = ("green", "yellow", "bold red")[status]
    console.print(f"{which}, {_VERDICTS[status]}, in {seconds:.1f} s", style=style)


def show_findings(console: Console, findings: Sequence[Finding]) -> None:
    """Prints one line for each finding, with its remedy; what is long goes on, indented."""
    for finding in findings:
        line = Text(finding.severity, style=_STYLES[finding.severity])
        line.append(f": {finding.what}. ", style="default")
        line.append("Do: ", style="bold")
        line.append(f"{finding.remedy}.", style="default")
        first, *rest = line.wrap(console, console.width - 2)
        console.print(first)
        for more in rest:
            console.print(Text("  ") + more)
    if findings:
        console.print()


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", pad_edge=False)
    for n, column in enumerate(columns):
        table.add_column(column, justify="left" if n == 0 else "right", overflow="fold")
    return table


def _cluster(facts: Sequence[Facts]) -> Table:
    table = _table("Cluster", "", "")
    table.show_header = False
    table.columns[1].justify = "left"
    names = dict.fromkeys(name for of in facts for name in of.versions)
    rows: list[tuple[str, Callable[[Facts], Hashable]]] = [
        (name, lambda of, name=name: of.versions.get(name, "not installed")) for name in names
    ]
    rows += [
        ("found by", lambda of: of.detector),
        ("coordinator", lambda of: of.coordinator or "none"),
        ("devices each", lambda of: f"{of.local_devices} x {', '.join(of.kinds)}"),
        ("memory of a device", lambda of: size(of.memory_each) if of.memory_each else "not told"),
        ("XLA_FLAGS", lambda of: of.environment.get("XLA_FLAGS") or "none"),
    ]
    for name, value in rows:
        found = groups({of.process: value(of) for of in facts})
        if len(found) == 1:
            words = str(next(iter(found)))
        else:
            words = "\n".join(f"{name_processes(who)}: {given}" for given, who in found.items())
        table.add_row(name, Text(words))
    return table


def _machines(facts: Sequence[Facts]) -> Table:
    table = _table(
        "Hosts", "host", "processes", "CPUs", "load", "memory free/all", "files", "/dev/shm"
    )
    for here in list(hosts(facts).values())[:_SHOWN]:
        host = here[0].host
        files = sorted({of.host.open_files for of in here})
        shared = host.shared_memory
        table.add_row(
            host.name,
            name_processes(of.process for of in here).partition(" ")[2],
            f"{host.usable_cpus}",
            f"{host.load:.1f}",
            f"{size(min(of.host.memory_free for of in here))}/{size(host.memory)}",
            "-".join(map(str, dict.fromkeys((files[0], files[-1])))),
            size(shared.free) if shared else "none",
        )
    caches = {of.process: f"{of.cache.folder} ({of.cache.kind})" for of in facts if of.cache}
    for cache, who in list(groups(caches).items())[:3]:
        table.caption = f"compilation cache: {cache} of {name_processes(who)}"
    return table


def _processes(figures: Sequence[Figures]) -> Table:
    table = _table(
        "Each process: ms to the coordinator and back; its clock's lead on process 0's; GB/s",
        *("process", "round trip", "worst", "clock", "to device", "back", "slower link"),
    )
    for of in figures[:_SHOWN]:
        times = (of.round_trip, of.round_trip_worst)
        table.add_row(
            str(of.process),
            *("" if value is None else f"{value * 1000:.3g}" for value in times),
            "" if of.clock is None else duration(of.clock),
            *(
                "" if value is None else f"{value:.3g}"
                for value in (
                    of.to_device,
                    of.from_device,
                    min(of.links.values(), default=None),
                )
            ),
        )
    if len(figures) > _SHOWN:
        table.caption = f"and {len(figures) - _SHOWN} more processes; --json has all"
    return table


def _collectives(figures: Sequence[Figures]) -> Table | None:
    if figures[0].barrier is None or len(figures) == 1:
        return None
    table = _table("Collectives", "", "size", "time", "rate", "slowest process")
    slowest = max(figures, key=lambda of: of.barrier or 0.0)
    table.add_row("barrier", "", duration(slowest.barrier or 0.0), "", str(slowest.process))
    count = len(figures)
    for name in ("allgather", "broadcast"):
        for key in getattr(figures[0], name):
            slowest = max(figures, key=lambda of, name=name, key=key: getattr(of, name)[key])
            taken = getattr(slowest, name)[key]
            moved = int(key) * ((count - 1) / count if name == "allgather" else 1)
            speed = rate(moved / max(taken, 1e-9) / 1e9)
            table.add_row(name, size(int(key)), duration(taken), speed, str(slowest.process))
    return table
