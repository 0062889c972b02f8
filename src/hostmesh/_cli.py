"""The command `hostmesh`. A command is imported when it runs, and so is what it needs."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import click

from ._version import __version__

# name -> where its click command is, and its line in `hostmesh --help`, which imports none of them.
_ELSEWHERE = {
    "bench": ("hostmesh._bench._command:command", "Race hostmesh against JAX on this machine."),
    "doctor": ("hostmesh._doctor._command:command", "Look for what is wrong with a cluster."),
    "demo": ("hostmesh._demo:command", "Show what hostmesh does, on this machine."),
    "plan": ("hostmesh._plan_command:command", "Show who holds what of an array, without devices."),
}


class _Group(click.Group):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = _ELSEWHERE[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_ELSEWHERE])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = {name: line for name, (_, line) in _ELSEWHERE.items()}
        rows.update({name: command.get_short_help_str() for name, command in self.commands.items()})
        with formatter.section("Commands"):
            formatter.write_dl(sorted(rows.items()))


@click.group(cls=_Group)
@click.version_option(__version__, message="%(prog)s %(version)s")
def main() -> None:
    """Host-local values to global JAX arrays and back, on any mesh of several processes."""


def _devices(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        devices = tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is no number, nor numbers with commas between"
        ) from None
    if min(devices) < 1:
        raise click.BadParameter(f"{value!r}: each process has at least 1 device")
    return devices


@main.command(
    short_help="Run a script in several processes that form one JAX cluster.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("-n", "processes", type=click.IntRange(min=1), help="Processes.  [default: 2]")
@click.option(
    "-d",
    "devices",
    callback=_devices,
    metavar="D[,D...]",
    default="1",
    show_default=True,
    help="CPU devices of each process; 2,2,1,1 gives each its own number.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="End the run after S seconds, with the Python stacks of all processes and status 124.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    metavar="P",
    help="Port of the coordinator on 127.0.0.1.  [default: a free one]",
)
@click.option(
    "--hosts",
    type=click.IntRange(min=1),
    metavar="H",
    help="Spread the processes over H hosts: network namespaces (Linux, root, iproute2).",
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    metavar="S",
    help="Seconds from SIGTERM to SIGKILL, for a program that saves.  [default: 5]",
)
@click.option(
    "--fault",
    metavar="KIND:PROCESS@WHEN",
    help="Make one process stray, such as stop:2@step=30; see hostmesh.testing.fault.",
)
@click.option("-m", "module", is_flag=True, help="SCRIPT is a module, as in python -m.")
@click.option("--verbose", is_flag=True, help="Show the lines that every JAX run has, too.")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(
    processes: int | None,
    devices: tuple[int, ...],
    timeout: float | None,
    port: int | None,
    hosts: int | None,
    grace: float | None,
    fault: str | None,
    module: bool,
    verbose: bool,
    script: str,
    args: tuple[str, ...],
) -> None:
    """Run SCRIPT in several processes that form one JAX cluster on this machine.

    SCRIPT calls hostmesh.initialize() first. Each line of output is shown behind the number of its
    process. The first process to fail ends the others, and its exit status (128 + n for signal n)
    is that of this command.

    \b
    hostmesh run -n 4 -d 2 train.py --steps 10
    hostmesh run -n 4 -d 2,2,1,1 -m package.train
    hostmesh run -n 4 -d 2 -- hostmesh doctor
    """
    from . import _outcome, _run
    from ._errors import HostmeshError

    if processes is None:
        processes = len(devices) if len(devices) > 1 else 2
    if len(devices) not in (1, processes):
        raise click.BadParameter(
            f"{len(devices)} numbers of devices for {processes} processes; give one, or {processes}",
            param_hint="-d",
        )
    looks = script == "hostmesh" and not Path(script).is_file()  # this command, in each process
    module |= looks
    if not module and not Path(script).exists():
        raise click.BadParameter(f"{script!r} does not exist", param_hint="SCRIPT")
    environment = dict[str, str]()
    if fault is not None:
        from ._cluster import FAULT
        from ._faults import Fault

        try:
            strays = Fault.parse(fault).process
        except HostmeshError as error:
            raise click.BadParameter(str(error), param_hint="--fault") from None
        if strays >= processes:
            raise click.BadParameter(
                f"process {strays} of {processes}, which are 0 to {processes - 1}",
                param_hint="--fault",
            )
        environment[FAULT] = fault
    each = devices if len(devices) == processes else devices * processes
    command = [sys.executable, *(["-m"] if module else []), script, *args]
    try:
        result = _run.run(
            command,
            each,
            timeout=timeout,
            port=port,
            hosts=hosts,
            verbose=verbose,
            grace=grace,
            environment=environment,
        )
    except HostmeshError as error:  # of `hosts`
        raise click.ClickException(str(error)) from None
    told = looks and result.first_failure is not None and result.first_failure.process == 0
    if not told and (text := _outcome.summary(result)):  # else process 0 has said what is wrong
        click.echo(text, err=True)
    if result.status == _outcome.UNREAD:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left cannot be flushed at exit
    sys.exit(result.status)
