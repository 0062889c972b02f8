"""What `explain` adds to JAX's own errors, on real processes: variables, axes, processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hostmesh
from hostmesh import _jax
from hostmesh._explain import annotate

cluster = pytest.mark.multiprocess(processes=2, devices=2)


def mesh(backwards: bool = False) -> Mesh:
    devices = jax.devices()[::-1] if backwards else jax.devices()
    return Mesh(np.array(devices).reshape(2, 2), ("data", "model"))


def rows(on: Mesh) -> jax.Array:
    return hostmesh.to_global(np.arange(8, dtype=np.float32), on, P("data"))


def said(wrong: Callable[[], object]) -> str:
    with pytest.raises((RuntimeError, ValueError)) as caught:
        wrong()
    explained = hostmesh.explain(caught.value)
    assert explained is not None, caught.value
    return explained


def held(array: str = "float32[16]", cut: str = "P('data')") -> str:
    me = jax.process_index()
    return (
        f" is {array}, cut by {cut} over mesh data=2, model=2: 2 of its 4 shards are on this "
        f"process ({me}), the others on process {1 - me}."
    )


def here(function: Callable[..., object], after: int) -> str:
    return f"tests/test_explain.py:{function.__code__.co_firstlineno + after}"


@cluster
def test_the_variable_that_was_read() -> None:
    params = {"a": 1, "layers": [{"w": rows(mesh())}]}
    itself = SimpleNamespace(state=SimpleNamespace(params=params))

    def plain() -> None:
        w = params["layers"][0]["w"]
        np.asarray(w)

    def of_a_tree() -> None:
        jax.device_get(params)

    def of_an_object(self: Any) -> None:
        np.asarray(self.state.params["layers"][0]["w"])

    def of_no_name() -> None:
        np.asarray(params["layers"][0]["w"] * 2)

    assert said(plain).startswith(f"w ({here(plain, 2)}){held()}")
    assert "hostmesh.to_local(x)" in said(plain)
    assert said(of_a_tree).startswith(f"params['layers'][0]['w'] ({here(of_a_tree, 1)}){held()}")
    name = "self.state.params['layers'][0]['w']"
    assert said(lambda: of_an_object(itself)).startswith(
        f"{name} ({here(of_an_object, 1)}){held()}"
    )
    assert said(of_no_name).startswith(f"an array without a name ({here(of_no_name, 1)}){held()}")


@cluster
def test_the_variable_that_was_put_on_one_device() -> None:
    x = rows(mesh())
    text = said(lambda: jax.device_put(x, jax.local_devices()[0]))
    assert text.startswith("x (")
    assert held() in text


@cluster
def test_the_variable_that_a_jitted_function_captured() -> None:
    tree = {"other": jnp.ones(3), "w": rows(mesh())}

    @jax.jit
    def scaled(y: Any) -> Any:
        def inner() -> Any:
            return tree["w"] * y

        return inner()

    text = said(lambda: scaled(1.0))
    assert text.startswith("scaled (tests/test_explain.py:")
    assert f"takes from outside: tree['w']{held()} Make it an argument of scaled" in text


@cluster
def test_no_other_function_is_blamed_for_what_was_captured() -> None:
    w = rows(mesh())

    def innocent(y: Any) -> Any:  # it would capture the same, and is not called
        return w * y

    def through_hands(function: Any) -> Any:
        return jax.jit(function)(1.0)

    assert callable(innocent)
    text = said(lambda: jax.jit(lambda y: w * y)(1.0))
    assert text.startswith("a lambda (tests/test_explain.py:")
    assert f"takes from outside: w{held()} Make it an argument of a lambda" in text
    text = said(lambda: through_hands(lambda y: y + w))
    assert text.startswith("a lambda (tests/test_explain.py:")
    listed = [lambda y: w - y]
    text = said(lambda: through_hands(listed[0]))
    assert "innocent" not in text


@cluster
def test_the_first_difference_of_device_orders() -> None:
    devices = [device.id for device in jax.devices()]
    x, y = rows(mesh()), rows(mesh(backwards=True))
    expected = (
        "are on the same 4 devices in different orders: the first difference is at place 0, device "
        f"{devices[0]} of process 0 for x and device {devices[3]} of process 1 for y. Use one mesh "
        "for both, or move one: hostmesh.reshard(y, mesh, specs)."
    )
    assert said(lambda: x + y) == f"x and y {expected}"
    named = said(lambda: jax.jit(lambda tree, y: tree["x"] + y)({"x": x}, y))
    assert named.startswith("tree['x'] and y are on the same 4 devices")
    there = NamedSharding(mesh(backwards=True), P())
    within = said(lambda: jax.jit(lambda x: jax.lax.with_sharding_constraint(x, there))(x))
    assert within.startswith("x and the sharding_constraint inside jit are on the same 4 devices")
    assert "hostmesh.reshard(x, mesh, specs)" in within


@cluster
def test_devices_that_one_argument_alone_is_on() -> None:
    x = rows(mesh())
    local = jax.device_put(np.ones(16, np.float32), jax.local_devices()[0])
    others = [d.id for d in jax.devices() if d != jax.local_devices()[0]]
    assert said(lambda: x + local) == (
        f"x and y are not on the same devices: x alone is on devices {str(others)[1:-1]} of "
        "processes 0-1. Use one mesh for both, or move one: hostmesh.to_global(y, mesh, specs)."
    )


@cluster
@pytest.mark.private_names
def test_who_had_arrived_at_a_barrier() -> None:
    client = _jax.coordination_client()
    if jax.process_index() == 1:
        text = said(lambda: client.wait_at_barrier("stray", 500))
        assert text.startswith(
            "1 of 2 processes came to the barrier 'stray', process 1 first; process 0 did not."
        )
    missing = said(lambda: client.blocking_key_value_get("stray/key", 300))
    assert missing.startswith("no process wrote the key 'stray/key' in 300ms")
    with pytest.raises(RuntimeError) as caught:  # hostmesh's own keys mean nothing to a user
        client.blocking_key_value_get("hostmesh/agree/MainThread/all/0/9999/verdict", 300)
    assert hostmesh.explain(caught.value) is None


def test_nothing_is_said_where_there_is_nothing_to_add() -> None:
    for error in (ValueError("x"), KeyError(), RuntimeError("Barrier timed out."), SystemExit(3)):
        assert hostmesh.explain(error) is None
        annotate(error)
        assert not hasattr(error, "__notes__")


@cluster
def test_a_cause_is_explained_and_noted_once() -> None:
    x = rows(mesh())

    def step() -> None:
        try:
            np.asarray(x)
        except RuntimeError as error:
            raise KeyError("step 3") from error

    with pytest.raises(KeyError) as caught:
        step()
    annotate(caught.value)
    annotate(caught.value)
    (note,) = caught.value.__notes__
    assert note.startswith("hostmesh: x (")


PROGRAM = """
import jax, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
import hostmesh

hostmesh.initialize()
loss = hostmesh.to_global(np.zeros(2), Mesh(jax.devices(), "x"), P("x"))
print(np.asarray(loss))
"""


def test_under_the_error_that_ends_a_program(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-c", "from hostmesh._cli import main; main()", "run", "-n", "2"]
    done = subprocess.run(
        [*command, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert done.returncode
    assert "hostmesh: loss (" in done.stdout + done.stderr
    assert "program.py:8) is float32[4], cut by P('x') over mesh x=2" in done.stdout + done.stderr


def test_under_a_failed_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import jax, numpy as np, pytest
        from jax.sharding import Mesh, PartitionSpec as P
        import hostmesh

        @pytest.mark.multiprocess(processes=2, devices=1)
        def test_read():
            loss = hostmesh.to_global(np.zeros(2), Mesh(jax.devices(), "x"), P("x"))
            assert np.asarray(loss).sum() == 0
        """
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*hostmesh: loss (*is float32[[]4[]], cut by P('x') over mesh x=2*"]
    )
