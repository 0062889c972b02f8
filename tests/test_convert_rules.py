"""What `to_global` and `to_local` decide before they move anything: pure, so in one process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hostmesh as hm
from hostmesh import ShapeError, SpecError, _convert
from test_bad_input import Row, check

ROWS = np.zeros((4, 2), np.float32)
TREE = {"a": ROWS, "b": ROWS}


@functools.cache
def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()[:1]), "x")


@functools.cache
def other() -> Mesh:
    return Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("a", "b"))


def shardings_of(arrays: Any, *args: Any) -> list[Any]:
    return list(_convert._layouts(arrays, *args)[1])


def traced(check: str | None) -> Callable[[], Any]:
    return lambda: jax.eval_shape(lambda x: _convert._level_of(check, x) and x, ROWS)


WRONG: dict[str, Row] = {
    "a check of another name": (
        lambda: hm.to_global(ROWS, mesh(), P("x"), check="all"),
        SpecError,
        ("to_global", "check='all'", "None, 'shapes' or 'replicas'", "leave check= out"),
    ),
    "a check of traced values": (traced("shapes"), SpecError, ("check='shapes' for traced",)),
    "a mesh that is none": (
        lambda: hm.to_global(ROWS, "x", P("x")),  # type: ignore[arg-type]
        SpecError,
        ("to_global", "mesh of type str", "pass the mesh itself"),
    ),
    "no mesh at all": (
        lambda: hm.to_global(ROWS, None, P("x")),
        SpecError,
        ("to_global", "mesh=None", "no mesh is set"),
    ),
    "no mesh for one of two specs": (
        lambda: hm.to_global(TREE, None, {"a": NamedSharding(mesh(), P("x")), "b": P("x")}),
        SpecError,
        ("mesh=None",),
    ),
    "a mesh without specs": (
        lambda: hm.to_local(ROWS, mesh()),
        SpecError,
        ("to_local", "a mesh without specs", "give both"),
    ),
    "a spec that is none": (
        lambda: hm.to_global(TREE, mesh(), {"a": P("x"), "b": "x"}),
        SpecError,
        ("leaf ['b'] on process 0 (to_global)", "spec 'x'", "PartitionSpec()"),
    ),
    "the first spec that is none": (
        lambda: hm.to_global(TREE, mesh(), {"a": 7, "b": P("x")}),
        SpecError,
        ("leaf ['a'] on process 0 (to_global)", "spec 7"),
    ),
    "the only spec is none": (
        lambda: hm.to_global(ROWS, mesh(), 7),
        SpecError,
        ("value on process 0 (to_global)", "spec 7"),
    ),
    "an axis of another mesh": (
        lambda: hm.to_global(ROWS, mesh(), P("a")),
        SpecError,
        ("value on process 0 (to_global)", "'a' is no axis"),
    ),
    "a global shape in words": (
        lambda: hm.to_global(ROWS, mesh(), P("x"), global_shape="42"),
        ShapeError,
        ("to_global", "global_shape '42'", "tuple of whole numbers"),
    ),
    "a global shape with a half": (
        lambda: hm.to_global(TREE, mesh(), P("x"), global_shape={"a": (4, 2), "b": 2.5}),
        ShapeError,
        ("global_shape 2.5",),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_conversions_of_one_process(name: str) -> None:
    assert not check(WRONG[name])


def test_the_level_of_checking() -> None:
    for level in (None, "shapes", "replicas"):
        assert _convert._level_of(level, ROWS) == level
        with hm.config.set(check=level):
            assert _convert._level_of("config", ROWS) == level
            seen: list[Any] = []
            jax.eval_shape(lambda x, seen=seen: seen.append(_convert._level_of("config", x)), ROWS)
            assert seen == [None]  # traced values are not compared
    assert jax.eval_shape(lambda x: x if _convert._level_of(None, x) is None else 0, ROWS).shape


def test_the_processes_that_are_meant() -> None:
    assert _convert.processes_of(None, P("x")) == ()
    assert _convert.processes_of(mesh(), P("x")) == (0,)
    assert _convert.processes_of(None, NamedSharding(mesh(), P("x"))) == (0,)
    with jax.set_mesh(mesh()):
        assert _convert.processes_of(None, P("x")) == (0,)
    assert _convert.processes_of("x", P("x")) == ()  # type: ignore[arg-type]  # told elsewhere


def test_which_mesh_is_taken() -> None:
    own = NamedSharding(other(), P("a"))
    assert _convert.mesh_for(mesh(), [P("x")], "f") is mesh()
    assert _convert.mesh_for(None, [own, own], "f") is None
    with jax.set_mesh(mesh()):
        assert _convert.mesh_for(None, [P("x")], "f") == mesh()
        assert _convert.mesh_for(None, [own, P("x")], "f") == mesh()
        assert _convert.mesh_for(None, [own], "f") is None
        assert _convert.mesh_for(other(), [P("a")], "f") is other()
    assert _convert.sharding_for(mesh(), own) is own
    assert _convert.sharding_for(mesh(), P("x")) == NamedSharding(mesh(), P("x"))


def test_the_layout_of_each_leaf() -> None:
    own = NamedSharding(other(), P("a"))
    assert shardings_of(TREE, None, None) == [None, None]
    assert shardings_of(TREE, mesh(), P("x")) == [NamedSharding(mesh(), P("x"))] * 2
    specs = {"a": P("x"), "b": P(None, "x")}
    assert shardings_of(TREE, mesh(), specs) == [NamedSharding(mesh(), s) for s in specs.values()]
    assert shardings_of(TREE, None, own) == [own, own]
    assert shardings_of(TREE, mesh(), {"a": own, "b": P()}) == [own, NamedSharding(mesh(), P())]


def test_the_global_shape_of_each_leaf() -> None:
    matched = _convert.Matched(TREE, P("x"), "to_global", "specs")

    def shapes(given: Any) -> list[Any]:
        return list(_convert._shapes_for(TREE, matched, given))

    assert shapes(None) == [None, None]
    assert shapes((4, 2)) == shapes([4, 2]) == [(4, 2), (4, 2)]
    assert shapes({"a": [4, 2], "b": ()}) == [(4, 2), ()]
    assert shapes({"a": (4, 2), "b": None}) == [(4, 2), None]
