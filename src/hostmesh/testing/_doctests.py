"""Docstring examples that need a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._run import run

if TYPE_CHECKING:
    from collections.abc import Sequence


def run_doctests(*objects: object, processes: int = 4, devices: int | Sequence[int] = 2) -> int:
    """Runs the examples in the docstrings of modules, classes or functions in every process.

    Returns the number of examples that each process ran. Raises `ClusterError`, with the report
    of the first failed docstring, where an example does not give what is written below it; what
    is written must be the same in all processes.

    >>> from hostmesh import _errors
    >>> run_doctests(_errors, processes=2, devices=1)
    3
    """
    return run(_examples, processes, devices, (objects,))[0]


def _examples(objects: Sequence[object]) -> int:
    import doctest  # slow to import, and hostmesh.testing is loaded by every pytest run

    count = 0
    for thing in objects:
        for test in doctest.DocTestFinder(exclude_empty=True).find(thing, _name(thing)):
            report: list[str] = []
            runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
            failed, tried = runner.run(test, out=report.append)
            if failed:
                raise AssertionError("".join(report))
            count += tried
    return count


def _name(thing: object) -> str:
    return str(getattr(thing, "__qualname__", getattr(thing, "__name__", thing)))
