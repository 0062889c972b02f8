"""Which import starts a JAX backend: tried in this process, which has started none."""

from __future__ import annotations

import importlib
import itertools
import traceback

import click

from .. import _backend_start, _jax

Frames = list[tuple[str, traceback.FrameSummary]]


def trace(package: str) -> int:
    """Imports a package, and tells whether that started a JAX backend, and from where.

    Returns 0 where it did not, 1 where it did, 2 where the package cannot be imported.
    """
    _backend_start.watch()
    try:
        importlib.import_module(package)
    except BaseException as error:  # a package may even exit
        click.echo("".join(traceback.format_exception(error)), err=True)
        click.echo(f"error: {package} cannot be imported: {error!r}", err=True)
        return 2
    if not _jax.backends_started():
        click.echo(f"Importing {package} starts no JAX backend.")
        return 0
    click.echo(f"warning: importing {package} starts {_backend_start.description()}")
    frames = _frames()
    imports = [(name, frame) for name, frame in frames if frame.name == "<module>"]
    if imports:
        click.echo("\nThe imports that led there, each by the one above it:")
        for name, frame in imports:
            click.echo(f"  {name} ({frame.filename}:{frame.lineno}): {frame.line}")
    if frames:
        click.echo(f"\nThe stack, the outermost call first:\n{_shown(frames)}")
    click.echo(
        "\nDo: move what needs a device out of that module's top level, into a function; or call"
        " hostmesh.initialize() above the import."
    )
    return 1


def _frames() -> Frames:
    """The calls from the import on, without the import system's own."""
    stack = _backend_start.stack()
    first = max((n for n, (name, _) in enumerate(stack) if name == __name__), default=-1)
    return [
        (name, frame)
        for name, frame in stack[first + 1 :]
        if name.partition(".")[0] not in ("importlib", "hostmesh", "logging")
        and not frame.filename.startswith("<frozen importlib")
    ]


def _shown(frames: Frames) -> str:
    """A stack in words: of several calls within JAX the first, and how many more there are."""
    lines: list[str] = []
    for package, run in itertools.groupby(frames, key=lambda item: item[0].partition(".")[0]):
        calls = [frame for _, frame in run]
        folded = package in ("jax", "jaxlib") and len(calls) > 1
        lines += traceback.StackSummary.from_list(calls[: 1 if folded else None]).format()
        if folded:
            lines.append(f"  and {len(calls) - 1} more calls within {package}\n")
    return "".join(lines).rstrip()
