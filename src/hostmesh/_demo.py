"""`hostmesh demo`: one training in several processes, drawn, and held to the same one in a single.

This process starts no JAX backend: it plans, draws, and runs `_demo_train` in others.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import click
import numpy as np
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from . import _outcome, _run
from ._demo_train import BATCHES, LEAVES, MARK, SHAPES, SPECS, Job, own_rows, save
from ._errors import ClusterError, build
from ._plan import plan

TOLERANCE = 1e-5  # of float32 losses whose sums were taken in another order
TIMEOUT = 240.0  # seconds for each of the two trainings


@dataclass
class Outcome:
    """What a training told: the loss before each step, how its feeder did, hits in the test set, and
    medians in ms."""

    losses: list[float] = field(default_factory=list[float])
    fed: str = ""
    correct: float = float("nan")
    milliseconds: dict[str, float] = field(default_factory=dict[str, float])


@click.command()
@click.option("--processes", type=click.IntRange(1, 16), default=4, show_default=True)
@click.option(
    "--devices",
    type=click.IntRange(1, 16),
    default=2,
    show_default=True,
    help="CPU devices of each process.",
)
@click.option(
    "--mesh",
    "order",
    type=click.Choice(["block", "interleaved"]),
    default="block",
    show_default=True,
    help="Give each process a run of neighbours in the mesh, or deal its devices out in turn.",
)
@click.option(
    "--steps", type=click.IntRange(1), default=200, show_default=True, help="Training steps."
)
@click.option("--plain", is_flag=True, help="No colour, no moving parts, ASCII only.")
def command(
    processes: int,
    devices: int,
    order: Literal["block", "interleaved"],
    steps: int,
    plain: bool,
) -> None:
    """Train on scikit-learn's digits in several processes, and check the losses against one.

    Each process holds only its own rows; the parameters are sharded over half of the mesh. Exits
    with 1 where the losses are not those of the same training in one process, within 1e-5.
    """
    console = Console(
        no_color=plain or None, highlight=False, force_terminal=False if plain else None
    )
    images, labels = _digits()
    with tempfile.TemporaryDirectory(prefix="hostmesh-demo-") as folder:
        save(folder, images, labels)
        job = Job(folder, processes, devices, order, steps)
        _show_plan(console, job, plain)
        spread = _train(console, job, [devices] * processes)
        tested = len(images) - BATCHES * job.batch()
        console.print(f"Test accuracy: {spread.correct / tested:.1%} of {tested} images")
        console.print(f"Feeder of process 0: {spread.fed}\n")
        single = _train(console, job, [1], alone=True)
        console.print(f"Test accuracy: {single.correct / tested:.1%}\n")
    _show_speed(console, spread.milliseconds)
    difference = float(np.max(np.abs(np.divide(spread.losses, single.losses) - 1)))
    agree = difference <= TOLERANCE
    console.print(
        f"The losses {'agree' if agree else 'DISAGREE'}: largest relative difference "
        f"{difference:.1e} (limit {TOLERANCE:.0e})",
        style="green" if agree else "red",
    )
    sys.exit(0 if agree else 1)


def _digits() -> tuple[Any, Any]:
    try:
        from sklearn.datasets import load_digits  # pyright: ignore
    except ModuleNotFoundError as error:
        raise click.ClickException(
            str(
                build(
                    ClusterError,
                    where="hostmesh demo",
                    given=str(error),
                    rule="the demo trains on the digits that come with scikit-learn",
                    advice='pip install "hostmesh[demo]"',
                )
            )
        ) from None
    digits: Any = load_digits()
    return digits.data, digits.target


def _show_plan(console: Console, job: Job, plain: bool) -> None:
    topology, batch = job.topology(), job.batch()
    axes = " x ".join(f"{name}={size}" for name, size in topology.axes)
    cluster = f"{_count(job.processes, 'process', 'es')} x {_count(job.devices, 'device', 's')}"
    console.print(f"\n{cluster}, {job.order} mesh {axes}\n")
    table = Table(
        title=f"Who holds what of {BATCHES * batch} images and the parameters (planned, no devices)",
        title_justify="left",
        box=box.ASCII if plain else box.ROUNDED,
    )
    places = ("process", "mesh places", "batch rows", "images", "w1 columns", "param bytes")
    for heading in places:
        table.add_column(heading, justify="right")
    for process in topology.processes:
        rows = own_rows(topology, batch, process)
        columns = plan(topology, SPECS["w1"], global_shape=SHAPES["w1"], process=process)
        held = [
            plan(topology, SPECS[name], global_shape=SHAPES[name], process=process)
            for name in SPECS
        ]
        table.add_row(
            str(process),
            _runs(topology.positions(process)),
            _runs(rows),
            f"{BATCHES * len(rows):,}",
            _runs(np.unique([np.r_[at.global_index[1]] for at in columns.placements()])),
            f"{sum(each.process_nbytes(np.float32) for each in held):,}",
        )
    console.print(table)
    console.print()


def _count(number: int, one: str, plural: str) -> str:
    return f"{number} {one}{plural if number != 1 else ''}"


def _runs(numbers: Iterable[int]) -> str:
    """Ascending numbers, runs of them as start-last.

    >>> _runs([0, 1, 2, 5, 8, 9])
    '0-2 5 8-9'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return " ".join("-".join(map(str, run)) for run in runs)


def _train(console: Console, job: Job, devices: list[int], *, alone: bool = False) -> Outcome:
    """Runs a training in processes of its own, and draws its progress."""
    outcome = Outcome()
    name = "1 process, all data" if alone else _count(len(devices), "process", "es")
    with _progress(console, name, job.steps) as advance:

        def take(event: dict[str, Any]) -> None:
            if "loss" in event:
                outcome.losses.append(event["loss"])
                advance(len(outcome.losses), event["loss"])
            else:
                vars(outcome).update(event)

        result = _run.run(
            job.command(alone=alone),
            devices,
            timeout=TIMEOUT,
            output=_Lines(take, lambda line: console.print(line, markup=False, soft_wrap=True)),
        )
    if result.status:
        click.echo(_outcome.summary(result), err=True)
        sys.exit(result.status)
    return outcome


class _Lines(io.BytesIO):
    """Where `_run` writes to: the marked lines of process 0 are events, all others are shown."""

    def __init__(self, take: Callable[[dict[str, Any]], None], show: Callable[[str], None]) -> None:
        super().__init__()
        self._take, self._show = take, show

    def write(self, lines: Any, /) -> int:
        for line in bytes(lines).decode(errors="replace").splitlines():
            _, mark, event = line.partition(MARK)
            if mark:
                self._take(json.loads(event))
            else:
                self._show(line.rstrip())
        return len(lines)


@contextmanager
def _progress(console: Console, name: str, steps: int) -> Generator[Callable[[int, float], None]]:
    """A bar that moves on a terminal; elsewhere a line at five points of the way."""
    if not console.is_terminal:

        def line(step: int, loss: float) -> None:
            if step == 1 or step * 5 // steps > (step - 1) * 5 // steps:
                console.print(f"{name}: step {step}/{steps}, loss {loss:.4f}")

        yield line
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(name, total=steps, loss=float("nan"))
        yield lambda step, loss: progress.update(task, completed=step, loss=loss)


def _show_speed(console: Console, milliseconds: dict[str, float]) -> None:
    ours, theirs = milliseconds["hostmesh"], milliseconds.get("jax")
    known = theirs is not None
    console.print(f"{LEAVES} small arrays onto the mesh, medians in process 0:")
    console.print(
        "  jax.make_array_from_process_local_data "
        + (f"{theirs:8.1f} ms" if known else "refuses this mesh")
    )
    console.print(f"  hostmesh.to_global                     {ours:8.1f} ms")
    console.print(
        f"  ratio                                  {theirs / ours:8.1f}\n" if known else ""
    )
