"""Wrong calls: each raises hostmesh's own error, with the leaf, the numbers and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P

import hostmesh as hm
from hostmesh import ShapeError, SpecError, Topology

# What is called, the error, and what its message must say.
Row = tuple[Callable[[], Any], type[Exception], tuple[str, ...]]

GRID = Topology.build({"x": 4, "y": 2}, processes=4)
ROWS = P("x")


def made(spec: Any, shape: Any = (8, 8), **kwargs: Any) -> hm.Plan:
    return hm.plan(GRID, spec, global_shape=shape, **kwargs)


PLANNING: dict[str, Row] = {
    "axes that are none": (lambda: Topology(5, [0]), SpecError, ("axes 5", "mapping of names")),  # type: ignore[arg-type]
    "axis size in letters": (
        lambda: Topology({"x": "a"}, [0]),  # type: ignore[dict-item]
        SpecError,
        ("axes {'x': 'a'}", "whole numbers", "{'data': 4, 'model': 2}"),
    ),
    "axis size of 2.5": (lambda: Topology({"x": 2.5}, [0, 0]), SpecError, ("{'x': 2.5}",)),  # type: ignore[dict-item]
    "axis of size 0": (lambda: Topology({"x": 0}, []), SpecError, ("{'x': 0}", "at least 1")),
    "two axes of one name": (
        lambda: Topology([("x", 2), ("x", 2)], [0, 0, 1, 1]),
        SpecError,
        ("sizes (2, 2)", "distinct", "its own name"),
    ),
    "too few process numbers": (
        lambda: Topology({"x": 4}, [0, 1]),
        SpecError,
        ("shape (2,)", "(4,) has 4 devices", "one process number for each device"),
    ),
    "process numbers the other way": (
        lambda: Topology({"x": 2, "y": 3}, np.zeros((3, 2), int)),
        SpecError,
        ("shape (3, 2)", "mesh of shape (2, 3)"),
    ),
    "ragged process numbers": (
        lambda: Topology({"x": 2}, [[0], [0, 1]]),  # type: ignore[list-item]
        SpecError,
        ("[[0], [0, 1]]", "whole numbers from 0"),
    ),
    "negative process number": (lambda: Topology({"x": 2}, [0, -1]), SpecError, ("[0, -1]",)),
    "process number over 32 bits": (
        lambda: Topology({"x": 1}, [2**40]),
        SpecError,
        (str(2**40), "from 0 to 2147483647"),
    ),
    "process numbers in letters": (
        lambda: Topology.build({"x": 2}, processes=2, order=["a", "b"]),
        SpecError,
        ("['a', 'b']",),
    ),
    "devices that do not divide": (
        lambda: Topology.build({"x": 3}, processes=2),
        SpecError,
        ("3 devices for processes=2", "order='block'", "change an axis size"),
    ),
    "unknown order": (
        lambda: Topology.build({"x": 2}, processes=2, order="zigzag"),
        SpecError,
        ("order='zigzag'", "'block', 'interleaved'"),
    ),
    "order with too high a process": (
        lambda: Topology.build({"x": 2}, processes=2, order=[0, 2]),
        SpecError,
        ("process number 2 with processes=2", "between 0 and 1"),
    ),
    "axes of build that are none": (
        lambda: Topology.build(4, processes=2),  # type: ignore[arg-type]
        SpecError,
        ("axes 4",),
    ),
    "topology of an abstract mesh": (
        lambda: Topology.from_mesh(AbstractMesh((2,), ("x",))),  # type: ignore[arg-type]
        SpecError,
        ("a AbstractMesh", "mesh's devices", "jax.sharding.Mesh"),
    ),
    "saved topology of something else": (
        lambda: Topology.from_dict({"axes": 3, "process_indices": [0]}),
        SpecError,
        ("'axes'", "Topology.to_dict"),
    ),
    "saved topology with sizes in letters": (
        lambda: Topology.from_dict({"axes": [["x", "q"]], "process_indices": [0]}),
        SpecError,
        ("Topology.to_dict",),
    ),
    "saved topology with a size without end": (  # found by fuzzing
        lambda: Topology.from_dict({"axes": [["x", float("inf")]], "process_indices": [0]}),
        SpecError,
        ("Topology.to_dict",),
    ),
    "saved topology with half a device": (
        lambda: Topology.from_dict({"axes": [["x", 1.5]], "process_indices": [0]}),
        SpecError,
        ("Topology.to_dict",),
    ),
    "plan of no mesh": (
        lambda: hm.plan(None, P(), global_shape=()),  # type: ignore[arg-type]
        SpecError,
        ("a NoneType", "jax.sharding.Mesh"),
    ),
    "plan of a list": (
        lambda: hm.plan([1], P(), global_shape=()),  # type: ignore[arg-type]
        SpecError,
        ("a list",),
    ),
    "mesh without devices": (
        lambda: hm.plan(Mesh(np.empty(0, object), ("x",)), P("x"), global_shape=(8,)),
        SpecError,
        ("{'x': 0}", "at least 1"),
    ),
    "None as a spec": (lambda: made(None), SpecError, ("spec None", "PartitionSpec()")),
    "a number as a spec": (lambda: made(3), SpecError, ("spec 3", "a int is no spec")),
    "a set as a spec": (lambda: made({"x", "y"}), SpecError, ("a set is no spec",)),
    "a frozenset as a spec": (lambda: made(frozenset("x")), SpecError, ("a frozenset is no spec",)),
    "a dict as a spec": (lambda: made({"x": 0}), SpecError, ("a dict is no spec",)),
    "a generator as a spec": (
        lambda: made(axis for axis in "xy"),
        SpecError,
        ("a generator is no spec", "PartitionSpec"),
    ),
    "a number as an entry": (lambda: made(("x", 3)), SpecError, ("entry 1 is 3", "axis name")),
    "entries nested too deep": (lambda: made(((("x",),),)), SpecError, ("entry 0", "axis name")),
    "lists nested too deep": (lambda: made([[["x"]]]), SpecError, ("[[['x']]]", "axis name")),
    "unknown axis": (
        lambda: made(P("x", "model")),
        SpecError,
        ("'model' is no axis", "{'x': 4, 'y': 2}", "correct the name"),
    ),
    "axis used twice": (
        lambda: made(("x", ("y", "x"))),
        SpecError,
        ("axis 'x' is used 2 times", "remove all uses but one"),
    ),
    "spec longer than the shape": (
        lambda: made(P("x", None, "y")),
        SpecError,
        ("3 entries", "2 dimensions", "drop the last"),
    ),
    "spec of a scalar": (
        lambda: made(P("x"), ()),
        SpecError,
        ("1 entries", "0 dimensions", "PartitionSpec() for a scalar"),
    ),
    "unconstrained dimension": (
        lambda: made(P("x", P.UNCONSTRAINED)),
        SpecError,
        ("dimension 1 is UNCONSTRAINED", "name the mesh axes"),
    ),
    "unreduced axis": (
        lambda: made(P("x", unreduced={"y"})),
        SpecError,
        ("['y'] are unreduced", "partial sums", "reduce the array inside jit"),
    ),
    "global size that does not divide": (
        lambda: made(P(None, ("x", "y")), (8, 21)),
        ShapeError,
        ("(8, 21)", "dimension 1", "x=4 x y=2 in 8 chunks", "size 21", "16 or 24"),
    ),
    "global size below the chunks": (
        lambda: made(P("x"), (3, 8)),
        ShapeError,
        ("dimension 0", "multiple of 4", "trim it to 4,"),
    ),
    "local size that does not divide": (
        lambda: hm.plan(GRID, P(("x", "y")), local_shape=(5, 8), process=2),
        ShapeError,
        ("(5, 8)", "8 chunks, of which process 2 holds 2", "local size 5", "4 or 6"),
    ),
    "local shape of a process without devices": (
        lambda: hm.plan(GRID, P("x"), local_shape=(8,), process=9),
        ShapeError,
        ("process 9 has no device", "processes 0, 1, 2, 3", "jax.ShapeDtypeStruct"),
    ),
    "local shape of no process where they differ": (
        lambda: hm.plan(Topology({"x": 3}, [0, 0, 1]), P("x"), local_shape=(4,)),
        ShapeError,
        ("different numbers of chunks", "[(1,), (2,)]", "pass process="),
    ),
    "neither shape": (lambda: hm.plan(GRID, P("x")), ShapeError, ("neither local_shape nor",)),
    "local shape that fits no reading": (
        lambda: made(P("x"), (8, 8), local_shape=(4, 8), process=1),
        ShapeError,
        ("local shape (4, 8)", "process 1, together (2, 8)", "(8, 8)", "value of shape (2, 8)"),
    ),
    "local and global shape of different rank": (
        lambda: made(P("x"), (8, 8), local_shape=(2,), process=1),
        ShapeError,
        ("local shape (2,)", "global shape (8, 8)"),
    ),
    "negative size": (lambda: made(P(), (-8,)), ShapeError, ("(-8,)", "none below 0")),
    "size of 8.0": (lambda: made(P(), (8.0,)), ShapeError, ("(8.0,)", "whole numbers")),
    "a number as a shape": (lambda: made(P(), 8), ShapeError, ("shape 8", "pass a tuple")),
    "local shape of no process": (
        lambda: made(P("x")).local_shape(),
        SpecError,
        ("no process", "plan(..., process=0)"),
    ),
    "place of a chunk held elsewhere": (
        lambda: made(P("x"), process=0).local_index((3, 0)),
        ShapeError,
        ("chunk (3, 0)", "([0], [0])", "plan.chunks()"),
    ),
    "place of a chunk that is not there": (
        lambda: made(P("x")).global_index((4, 0)),
        ShapeError,
        ("chunk (4, 0)", "([0, 1, 2, 3], [0])"),
    ),
    "holders of a chunk of another rank": (
        lambda: made(P("x")).holders((0,)),
        ShapeError,
        ("chunk (0,)",),
    ),
}


def check(row: Row) -> str:
    """What is wrong with how a wrong call fails; empty if nothing is."""
    call, expected, says = row
    try:
        result = call()
    except Exception as error:
        text = str(error)
        if type(error) is not expected:
            return f"raised {type(error).__name__}, not {expected.__name__}: {text}"
        absent = [
            part
            for part in (*says, "\n  given: ", "\n  rule:  ", "\n  do:    ")
            if part not in text
        ]
        return f"does not say {absent}: {text}" if absent else ""
    return f"raised nothing: {str(result)[:200]}"


@pytest.mark.parametrize("name", PLANNING)
def test_wrong_plans(name: str) -> None:
    assert not check(PLANNING[name])
