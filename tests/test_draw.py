"""`draw`: of arrays, plans and trees, also while JAX traces, without values or other processes."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hostmesh as hm
from meshes import KINDS

TOPOLOGY = hm.Topology.build({"data": 4, "model": 2}, processes=4, order="interleaved")


def mesh_of(kind: str, axis_type: AxisType = AxisType.Auto) -> Mesh:
    """One of `KINDS`, on the devices of this process or of all."""
    mesh = KINDS[kind].mesh()
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(axis_type,) * mesh.devices.ndim)


def test_a_plan_in_each_style(tmp_path: Path) -> None:
    plan = hm.plan(TOPOLOGY, P("data"), global_shape=(64, 128), process=2)
    text, svg, html = (str(hm.draw(plan, style=style)) for style in ("text", "svg", "html"))
    assert "Process 2's local array: (32, 128)" in text
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert plan._repr_svg_() == svg
    assert plan._repr_html_() == html
    assert svg in html
    for path, start in (("a.txt", text), ("a.svg", svg), ("a.html", "<!doctype html>")):
        hm.draw(plan, style="svg").save(tmp_path / path)
        assert (tmp_path / path).read_text("utf-8").startswith(start)
    page = (tmp_path / "a.html").read_text("utf-8")
    assert html in page
    assert not re.findall(r"(?:src|href)=|@import|url\((?!#)", page), "it needs something else"


def test_a_picture_of_another_process_than_the_plans() -> None:
    plan = hm.plan(TOPOLOGY, P("data"), global_shape=(64, 128))
    assert "Process" not in str(hm.draw(plan, style="text"))
    assert "Process 3's local array: (32, 128)" in str(hm.draw(plan, process=3, style="text"))


def test_a_terminal_is_printed_to_and_a_notebook_shows(capsys: pytest.CaptureFixture[str]) -> None:
    plan = hm.plan(TOPOLOGY, P("data"), global_shape=(64, 128))
    picture = hm.draw(plan)
    assert capsys.readouterr().out == f"{picture}\n"
    assert repr(picture) == "Picture(1 array)"
    assert picture._repr_svg_() == plan._repr_svg_()
    assert picture._repr_html_() is None
    for style in ("text", "svg", "html"):
        hm.draw(plan, style=style)
    assert capsys.readouterr().out == ""
    two = hm.draw([plan, plan], style="svg")
    assert two._repr_svg_() is None
    assert str(two._repr_html_()).count("<svg ") == 2
    words = hm.draw(plan, style="text")
    assert (words._repr_svg_(), words._repr_html_()) == (None, None)
    assert repr(words) == str(words)


def test_a_terminal_without_unicode(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(stream, "ascii", write_through=True))
    hm.draw(hm.plan(TOPOLOGY, P("data"), global_shape=(64, 128)))
    assert b"| p0 d0 | p1 d1 |" in stream.getvalue()


def test_a_tree_has_a_picture_for_each_leaf_by_its_path() -> None:
    tree = {"w": np.zeros((8, 4), np.float32), "b": [jax.ShapeDtypeStruct((4,), jnp.bfloat16)]}
    specs = {"w": P("data", "model"), "b": P("model")}
    shown = str(hm.draw(tree, TOPOLOGY, specs, style="text"))
    for words in (
        "Global array ['b'][0] bfloat16 (4,)\ncut by P('model')",
        "Global array ['w'] float32 (8, 4)\ncut by P('data', 'model')",
    ):
        assert words in shown
    titles = re.findall(
        r"<title[^>]*>(.*?)</title>", str(hm.draw(tree, TOPOLOGY, specs, style="svg"))
    )
    assert [title.split("(")[0] for title in titles] == ["['b'][0] bfloat16 ", "['w'] float32 "]


def test_facts_beside_the_picture() -> None:
    array = jax.ShapeDtypeStruct((64, 128), np.float32)
    html = str(hm.draw(array, TOPOLOGY, P("data"), style="html"))
    facts = dict(re.findall(r"<th scope=\"row\">(.*?)</th><td>(.*?)</td>", html))
    assert facts == {
        "global shape": "(64, 128)",
        "spec": "P(&#x27;data&#x27;)",
        "shape on each device": "(16, 128)",
        "shape that each of processes 0-3 passes": "(32, 128)",
        "bytes": "8,192 on each device, 65,536 on all devices (array 32,768, 2 copies)",
        "on several processes": "yes: equal copies",
        "JAX&#x27;s own functions (such as host_local_array_to_global_array)": "need each"
        " process&#x27;s devices to form one rectangle of the mesh; here p0 has d0 and d4, with a"
        " gap. hostmesh takes it.",
    }


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: hm.draw([jnp.zeros(3)]), ("leaf [0] on process 0", "SingleDeviceSharding")),
        (lambda: hm.draw(np.zeros(3)), ("ndarray of shape (3,) with no sharding", "pass mesh and spec")),
        (lambda: hm.draw({"a": 3}), ("leaf ['a'] on process 0", "given: a int")),
        (lambda: hm.draw(np.zeros(3), TOPOLOGY, "data"), ("given: spec 'data'",)),
        (lambda: hm.draw(np.zeros(3), TOPOLOGY, P("data")), ("its size 3 must be a multiple of 4",)),
        (lambda: hm.draw(np.zeros(3), None, P("x")), ("given: mesh=None", "pass the mesh")),
        (lambda: hm.draw([], style="png"), ("given: style='png'",)),  # pyright: ignore
        (lambda: hm.draw([], style="svg").save("a.svg"), ("given: 'a.svg' for 0 arrays",)),
    ],
)  # fmt: skip
def test_errors_have_four_parts(make: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(hm.HostmeshError) as caught:
        make()
    for part in (*words, "\n  given: ", "\n  rule:  ", "\n  do:    "):
        assert part in str(caught.value)


@pytest.mark.multiprocess(processes=1, devices=8)
def test_while_jax_traces() -> None:
    pictures: list[str] = []
    errors: list[str] = []

    def drawing(*layout: Any) -> Any:
        def function(x: jax.Array) -> jax.Array:
            try:
                pictures.append(str(hm.draw(x, *layout, style="text")))
            except hm.SpecError as error:
                errors.append(str(error))
            return x

        return function

    auto = mesh_of_one_process(AxisType.Auto)
    explicit = mesh_of_one_process(AxisType.Explicit)
    spec = P("x", "y")
    on_auto = jax.device_put(np.zeros((8, 6), np.float32), NamedSharding(auto, spec))
    on_explicit = jax.device_put(np.zeros((8, 6), np.float32), NamedSharding(explicit, spec))
    expected = str(hm.draw(on_auto, style="text"))
    assert "cut by P('x', 'y') in 8 chunks (4 x 2) of shape (2, 3)" in expected

    jax.jit(drawing())(on_explicit)  # of its type
    jax.jit(drawing(auto, spec))(on_auto)
    for mesh, array in ((auto, on_auto), (explicit, on_explicit)):
        mapped = jax.shard_map(drawing(mesh, spec), mesh=mesh, in_specs=spec, out_specs=spec)
        jax.jit(mapped)(array)  # of a block, of shape (2, 3)
    sharding = NamedSharding(auto, spec)
    mapped = jax.shard_map(drawing(None, sharding), mesh=auto, in_specs=spec, out_specs=spec)
    jax.jit(mapped)(on_auto)
    jax.eval_shape(drawing(), on_explicit)
    jax.grad(lambda x: drawing(auto, spec)(x).sum())(on_auto)
    assert pictures == [expected] * len(pictures)
    assert (len(pictures), errors) == (7, [])

    jax.jit(drawing())(on_auto)
    jax.jit(jax.shard_map(drawing(), mesh=auto, in_specs=spec, out_specs=spec))(on_auto)
    not_known, block = errors
    assert "array of shape (8, 6), traced with Auto mesh axes ['x', 'y']" in not_known
    assert "array of shape (2, 3), traced by shard_map over mesh axes ['x', 'y']" in block
    assert len(pictures) == 7


def mesh_of_one_process(axis_type: AxisType) -> Mesh:
    devices = np.array(jax.devices()).reshape(4, 2)
    return Mesh(devices, ("x", "y"), axis_types=(axis_type,) * 2)


@pytest.mark.multiprocess(processes=4, devices=2)
def test_one_process_draws_without_the_others() -> None:
    """Process 2 alone draws: what it communicated would wait for ever. The values are gone."""
    for kind in ("interleaved", "permuted", "diagonal"):
        mesh = mesh_of(kind)
        spec = P(*mesh.axis_names)
        array = hm.from_callback((8, 8), mesh, spec, lambda index: np.zeros((8, 8))[index])
        array.delete()
        if jax.process_index() == 2:
            plan = hm.plan(mesh, spec, global_shape=(8, 8), process=2)
            picture = hm.draw(array, process=2, style="svg")
            drawn = str(picture).replace("float32 ", "")
            assert cells(drawn) == cells(str(hm.draw(plan, style="svg")))
            assert "p3 d" in drawn
            if kind == "diagonal":
                assert "no device" in drawn


def cells(svg: str) -> list[str]:
    return re.findall(r"<text x=[^>]*>([^<]*)<", svg)


def test_a_process_that_is_not_there_is_refused() -> None:
    with pytest.raises(hm.SpecError, match=r"given: process=4\n.* 0 to 3"):
        hm.draw(hm.plan(hm.Topology.build({"x": 4}, 4), "x", global_shape=(8,)), process=4)


@pytest.mark.multiprocess(processes=2, devices=2)
def test_a_type_alone_does_not_tell_processes() -> None:
    mesh = Mesh(np.array(jax.devices())[::-1], ("x",), axis_types=(AxisType.Explicit,))
    shape = jax.ShapeDtypeStruct(
        (4,), np.float32, sharding=NamedSharding(mesh.abstract_mesh, P("x"))
    )
    with pytest.raises(hm.SpecError, match=r"given: mesh=None for an array on AbstractMesh"):
        hm.draw(shape)
    with jax.set_mesh(mesh):
        in_force = str(hm.draw(shape, style="text"))
    assert in_force == str(hm.draw(shape, mesh, style="text"))
    assert "p1 d0 │ p1 d1 │ p0 d2 │ p0 d3" in in_force
