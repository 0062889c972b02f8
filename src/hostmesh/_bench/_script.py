"""What the scripts in `benchmarks/` run: claims of their own, by the races and table of `hostmesh bench`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from rich.console import Console

from .. import _machine
from .._errors import HostmeshError
from ._claim import Claim
from ._race import Settings
from ._run import run
from ._table import notes, table


def main(claims: Sequence[Claim], about: str | None, rounds: int = 15) -> None:
    """Races the claims and prints their table, under the first line of `about`."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--rounds", type=int, default=rounds)
    chosen: int = parser.parse_args().rounds

    def failed(title: str, error: HostmeshError) -> None:
        raise error

    results = run(claims, Settings(rounds=chosen, least=chosen), lambda title: None, failed)
    console = Console(highlight=False)
    print(f"{(about or '').splitlines()[0]} ({chosen} rounds, medians)")
    console.print(table(results))
    for line in notes(results):
        print(line)
    print(f"load of the machine: {_machine.load():.1f} on {os.cpu_count()} cores")
