"""`hostmesh bench`: what is claimed of speed, measured on this machine side by side with JAX."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

from .. import _machine
from .._errors import HostmeshError, SpecError, StorageError, build
from ._claim import Claim
from ._plot import write_plots
from ._race import Settings
from ._result import Result
from ._table import notes, table, times

_QUICK = Settings(rounds=2, warm=1, least=0, seconds=1.0)


@click.command()
@click.option("--processes", type=click.IntRange(1, 16), default=4, show_default=True)
@click.option(
    "--devices",
    type=click.Choice(["1", "2", "4", "8"]),
    default="2",
    show_default=True,
    help="CPU devices of each process.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    metavar="N",
    help="Rounds of each race, however long they take.  [default: 15, fewer in slow races]",
)
@click.option(
    "--curves", is_flag=True, help="Also over processes, bytes, leaves and devices: minutes more."
)
@click.option(
    "--quick",
    is_flag=True,
    help="Two rounds, or one of a slow race: whether all runs, not what it takes.",
)
@click.option("--json", "json_file", metavar="FILE", help="Write all figures to a file, as JSON.")
@click.option(
    "--svg", "svg_folder", metavar="FOLDER", help="Draw the curves, too: a file for each."
)
@click.option("--list", "listed", is_flag=True, help="Only say what is claimed.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
def command(
    names: tuple[str, ...],
    processes: int,
    devices: str,
    rounds: int | None,
    curves: bool,
    quick: bool,
    json_file: str | None,
    svg_folder: str | None,
    listed: bool,
) -> None:
    """Race hostmesh against JAX and others on this machine, and show the ratios.

    All contestants of a claim are called in turns in the same processes. A bound is what no way can
    do without, such as one copy. Figures, not a check: it ends with 0 where a bar is missed, and
    with 1 where a race fails. Run it on a quiet machine.

    \b
    hostmesh bench
    hostmesh bench leaves_in barrier --rounds 100
    hostmesh bench --curves --json bench.json --svg curves
    """
    from .claims import ALL

    progress = Console(stderr=True, highlight=False)
    load = _machine.load()
    try:
        claims = choose(names, ALL)
        if listed:
            _list(claims)
            return
        if json_file is not None:
            _may_write("--json", Path(json_file))
        if svg_folder is not None:
            _may_write("--svg", Path(svg_folder), folder=True)
    except HostmeshError as error:
        click.echo(f"hostmesh bench: {error}", err=True)
        sys.exit(2)

    from . import _accelerator, _curves, _record, _run

    settings = replace(_QUICK if quick else Settings(), processes=processes, devices=int(devices))
    if rounds is not None:
        settings = replace(settings, rounds=rounds, least=rounds)
    failures: list[str] = []

    def begins(title: str) -> None:
        progress.print(title, markup=False, style="dim")

    def failed(title: str, error: HostmeshError) -> None:
        failures.append(title)
        click.echo(f"hostmesh bench: {title} failed: {error}", err=True)

    results = _run.run([c for c in claims if c.name != _accelerator.NAME], settings, begins, failed)
    found = _accelerator.Found()
    if any(claim.name == _accelerator.NAME for claim in claims):
        begins(_accelerator.NAME)
        found = _accelerator.measure(settings)
        results += found.results
    drawn = _curves.run(settings, begins, failed) if curves or svg_folder is not None else []
    facts = _record.record(results, drawn, settings, load, found.devices)
    if json_file is not None:
        Path(json_file).write_text(json.dumps(facts, indent=1) + "\n", "utf-8")
    if svg_folder is not None:
        write_plots(facts["curves"], Path(svg_folder))
    _show(results, found.said, settings, load)
    for curve in drawn:
        click.echo(f"\n{_curves.text(curve)}")
    sys.exit(1 if failures else 0)


def choose(names: Sequence[str], known: Sequence[Claim]) -> list[Claim]:
    """The claims of these names, in the table's order; all where there are none."""
    unknown = [name for name in names if name not in {claim.name for claim in known}]
    if unknown:
        raise build(
            SpecError,
            where="NAME",
            given=", ".join(unknown),
            rule=f"the claims are {', '.join(claim.name for claim in known)}",
            advice="choose of these, or none for all; hostmesh bench --list says what they are",
        )
    return [claim for claim in known if not names or claim.name in names]


def _list(claims: Sequence[Claim]) -> None:
    for claim in claims:
        bar = "" if claim.bar is None else f"; bar {times(claim.bar)}"
        click.echo(f"{claim.name}\n    {claim.sentence}\n    peer: {claim.peer}{bar}")


def _may_write(option: str, path: Path, folder: bool = False) -> None:
    """Minutes before it is written: whether it can be."""
    try:
        if folder:
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.open("a").close()
    except OSError as error:
        raise build(
            StorageError,
            where=option,
            given=f"{str(path)!r}: {error.strerror or error}",
            rule="files are written anew, or in place of old ones",
            advice="name a place that is there and may be written to",
        ) from None


def _show(results: Sequence[Result], said: str, settings: Settings, load: float) -> None:
    with suppress(BrokenPipeError):
        console = Console(highlight=False)
        if results:
            console.print(
                f"{settings.processes} processes x {settings.devices} devices, medians; a ratio is"
                " the peer's time to hostmesh's",
                soft_wrap=True,
            )
            console.print(table(results))
        for line in [*notes(results), *([said] if said else [])]:
            console.print(line, markup=False)
        console.print(
            f"load of the machine before: {load:.1f}; what each claim is: hostmesh bench --list"
        )
