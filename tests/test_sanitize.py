"""Divergence found at its line: seeded ones, and none where there is none."""

from __future__ import annotations

import functools
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hostmesh as hm
from hostmesh.testing import run

pytestmark = pytest.mark.private_names  # programs are compared, and processes named


def _mesh() -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(jax.process_count(), -1), ("x", "y"))


def _ones() -> jax.Array:
    return hm.to_global(np.ones((2, 4), np.float32), _mesh(), P("x", "y"), check=None)


def _other_program() -> None:
    scale = 3.0 if jax.process_index() == 1 else 2.0
    jax.block_until_ready(jax.jit(lambda x: x * scale)(_ones()))  # here


def _program_on_one_only() -> None:
    if jax.process_index() == 1:
        jax.jit(lambda x: x - 1)(_ones())  # here
    hm.barrier("after")


def _other_order() -> None:
    names = ("a", "b") if jax.process_index() != 1 else ("b", "a")
    for name in names:
        hm.barrier(name)  # here


def _other_number_of_steps() -> None:
    for step in range(5 + (jax.process_index() == 1)):
        hm.should_stop(step)
    hm.barrier("end")  # here


def _other_key() -> None:
    key = jax.random.key(7 if jax.process_index() == 1 else 0)
    hm.to_global({"key": key}, _mesh(), P())  # here


def _order_of_a_set() -> None:
    words = sorted({f"word {i}" for i in range(99)}, key=lambda w: hash((w, jax.process_index())))
    hm.to_global(np.array([int(w[5:]) for w in words]), _mesh(), P())  # here


def _other_replicas() -> None:
    params = {"w": hm.to_global(np.ones(3), _mesh(), P(), check=None)}
    for number in range(11):
        if number == 4 and jax.process_index() == 1:
            params["w"] = hm.to_global(np.full(3, 2.0), _mesh(), P(), check=None)
        hm.check_tree(params, every=5, name="params")  # here


SEEDED = (
    _other_program,
    _program_on_one_only,
    _other_order,
    _other_number_of_steps,
    _other_key,
    _order_of_a_set,
    _other_replicas,
)


def _sanitized(work: Callable[[], None]) -> str:
    with hm.config.set(timeout=5.0), hm.channel(work.__name__):
        try:
            with hm.sanitize():
                work()
        except hm.DivergenceError as error:
            return str(error)
        return ""


@pytest.mark.parametrize("work", SEEDED, ids=lambda work: work.__name__.strip("_"))
def test_what_is_seeded_is_found_at_its_line(work: Callable[[], None]):
    found = run(functools.partial(_sanitized, work), 3, 2, timeout=60)
    lines, first = inspect.getsourcelines(work)
    (line,) = (first + i for i, text in enumerate(lines) if "# here" in text)
    for message in found:
        assert "process 1" in message
        assert f"tests/test_sanitize.py:{line}" in message, message


def _healthy() -> str:
    @jax.jit
    def step(x: jax.Array, key: jax.Array) -> jax.Array:
        jax.debug.print("sum {x}", x=x.sum())
        return x + jax.random.normal(key, x.shape)

    with hm.sanitize():
        x = _ones()
        for number in range(6):
            hm.should_stop(number)
            x = step(x, jax.random.key(number))
            hm.allgather(np.arange(5000.0) + number)
            hm.check_tree({"x": x, "n": number}, every=2, name="healthy")
            rows = np.full((2, 4), jax.process_index())
            hm.to_global({"a": rows, "b": 1.0}, _mesh(), {"a": P("x"), "b": P()})
        if jax.process_index() == 0:  # of one process: nobody's business
            jnp.ones(7).sum().block_until_ready()
            for _ in hm.Feeder([np.ones(2)] * 3, Mesh(jax.local_devices(), "x"), P("x")):
                pass  # a feeder's steps, and nobody else's
        hm.reshard(x, _mesh(), P("y"))
        hm.to_local(jax.device_put(x, NamedSharding(_mesh(), P())))
    return "well"


def test_nothing_is_found_where_nothing_is():
    assert run(_healthy, 4, 2, timeout=60) == ["well"] * 4


_PROGRAM = """
import sys
import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec as P
import hostmesh as hm

hm.initialize()
x = hm.to_global(np.ones(2), Mesh(jax.devices(), "x"), P("x"))
scale = 2.0 if sys.argv[1:] else 1.0 + jax.process_index()
jax.jit(lambda x: x * scale)(x).block_until_ready()
"""


@pytest.mark.parametrize("alike", [True, False])
def test_a_program_by_the_environment(alike: bool, tmp_path: Path):
    """Found where there is something to find, and not a word where there is not."""
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    command = [sys.executable, "-m", "hostmesh", "run", "-n", "2", "-d", "1", str(program)]
    done = subprocess.run(
        command + ["alike"] * alike,
        env=os.environ | {"HOSTMESH_SANITIZE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    told = done.stdout + done.stderr
    assert (done.returncode == 0) == alike
    assert ("Traceback" in told) == (not alike), told
    assert ("the compilation of jit__lambda" in told) == (not alike)


def _other_key_unasked() -> str:
    try:
        _other_key()
    except hm.DivergenceError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("asked", ["0", "1"])
def test_clusters_of_tests_by_the_environment(asked: str):
    found = run(_other_key_unasked, 2, 1, env={"HOSTMESH_SANITIZE": asked})
    assert ["process 1" in message for message in found] == [asked == "1"] * 2


def test_every_must_be_a_number_of_calls():
    with pytest.raises(hm.SpecError, match=re.escape("every=0")):
        hm.check_tree({"a": 1}, every=0)
