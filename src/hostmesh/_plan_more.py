"""What else `hostmesh plan` plans: a reshard, a model's file, the loading of it. Options and output."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click
import numpy as np
from rich.console import Console

from ._errors import SpecError, build
from ._plan import plan
from ._topology import Topology

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


@dataclass(frozen=True)
class More:
    """The options beside those of one array."""

    reshard: str | None
    file: str | None
    load: str | None
    rules: str | None
    hosts: int | None
    replicas: str
    sort: str
    filter: str | None

    @property
    def asked(self) -> bool:
        """Whether this is about more than one layout of one array."""
        return any(option is not None for option in (self.reshard, self.file, self.load))

    @property
    def of_files(self) -> bool:
        """Whether files tell the shapes."""
        return self.file is not None or self.load is not None


def options(command: CommandT) -> CommandT:
    """Adds the options to a click command."""
    for option in reversed(
        [
            click.option(
                "--reshard", metavar="OLD->NEW", help="Who sends what: 'data,None -> None,model'."
            ),
            click.option("--file", metavar="FILE", help="Plan all tensors of safetensors files."),
            click.option(
                "--load", metavar="FILE", help="What loading them reads, sends and holds."
            ),
            click.option(
                "--rules", metavar="FILE", help="TOML: patterns of names and their specs."
            ),
            click.option(
                "--hosts", type=click.IntRange(min=1), metavar="H", help="Processes in H blocks."
            ),
            click.option(
                "--replicas",
                type=click.Choice(["auto", "read", "once"]),
                default="auto",
                show_default=True,
                help="How --load reads what several hold.",
            ),
            click.option(
                "--sort",
                type=click.Choice(["file", "bytes", "name"]),
                default="file",
                show_default=True,
                help="Order of the tensors of --file.",
            ),
            click.option("--filter", metavar="REGEX", help="Only tensors of such names."),
        ]
    ):
        command = option(command)
    return command


def check(more: More) -> None:
    """Refuses options that do not go together, in click's way."""
    given = [name for name in ("reshard", "file", "load") if getattr(more, name) is not None]
    if len(given) > 1:
        raise click.UsageError(f"--{given[0]} and --{given[1]} are planned one at a time")
    if not more.of_files and (more.rules or more.filter):
        raise click.UsageError("--rules and --filter are about the tensors of --file or --load")


def run(
    more: More,
    topology: Topology,
    shape: Sequence[int],
    dtype: np.dtype[Any],
    specs: Callable[[str], Any],
    as_json: bool,
    console: Console,
) -> int:
    """Plans and prints what is asked for; gives the exit status, 1 where tensors do not fit."""
    if more.reshard is not None:
        from . import _plan_reshard

        host_of = _plan_reshard.hosts_of(max(topology.processes) + 1, more.hosts)
        old, new = (
            plan(topology, specs(spec), global_shape=shape)
            for spec in _plan_reshard.two_specs(more.reshard)
        )
        found = _plan_reshard.facts(old, new, dtype, host_of)
        _print(found, _plan_reshard.lines, as_json, console)
        return 0
    return _model(more, topology, specs, as_json, console)


def _model(
    more: More,
    topology: Topology,
    specs: Callable[[str], Any],
    as_json: bool,
    console: Console,
) -> int:
    from . import _plan_load, _plan_model, _plan_reshard, _plan_rules

    file = more.file if more.file is not None else str(more.load)
    rules = _plan_rules.read_rules(more.rules)
    tensors = _plan_rules.planned(_plan_rules.stored_in(file), topology, rules, specs)
    wanted = _plan_model.chosen(tensors, more.filter, more.sort)
    if not wanted:
        raise build(
            SpecError,
            where=file,
            given=f"--filter {more.filter!r}" if more.filter else "no tensors",
            rule=f"it is found in the name of one at least of the file's {len(tensors)} tensors",
            advice="leave --filter out to see all names",
        )
    if more.load is not None:
        host_of = _plan_reshard.hosts_of(max(topology.processes) + 1, more.hosts)
        found = _plan_load.facts(wanted, topology, host_of, more.replicas, file)
        _print(found, _plan_load.lines, as_json, console)
    else:
        found = _plan_model.facts(wanted, topology, rules)
        if as_json:
            click.echo(json.dumps(found, indent=1))
        else:
            _plan_model.show(found, topology, console)
    return 1 if found["wrong"] else 0


def _print(
    found: dict[str, Any],
    lines: Callable[[dict[str, Any]], list[str]],
    as_json: bool,
    console: Console,
) -> None:
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        console.print("\n".join(lines(found)), markup=False, soft_wrap=True)
