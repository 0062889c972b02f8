"""The examples of all public names, in every process of a cluster of 4 processes x 2 devices.

`pytest --doctest-modules src` runs them in one process.
"""

from __future__ import annotations

import inspect

import pytest

import hostmesh
from hostmesh import multihost_utils
from hostmesh.testing import run_doctests

ALONE = {"hostmesh.initialize"}  # whose example shows one process alone
PRIVATE = {"hostmesh.multihost_utils.live_devices"}  # that takes private names of JAX


def public() -> dict[str, object]:
    """Public functions and classes by name, and the classes of public objects."""
    things = {
        f"{module.__name__}.{name}": thing
        if inspect.isroutine(thing) or inspect.isclass(thing)
        else type(thing)
        for module in (hostmesh, multihost_utils)
        for name in dir(module)
        if not name.startswith("_") and (thing := getattr(module, name)) is not None
    }
    return {
        name: thing for name, thing in things.items() if thing.__module__.startswith("hostmesh")
    }


PUBLIC = public()


NAMES = [
    pytest.param(name, marks=pytest.mark.private_names) if name in PRIVATE else name
    for name in sorted(PUBLIC.keys() - ALONE)
]


@pytest.mark.parametrize("name", NAMES)
def test_examples_in_four_processes(name: str) -> None:
    examples = run_doctests(PUBLIC[name])
    if inspect.isroutine(PUBLIC[name]):
        assert examples > 0
