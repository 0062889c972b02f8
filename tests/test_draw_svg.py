"""SVG pictures: their labels, parsed back by where they stand, against the brute-force oracle."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import hostmesh as hm
import oracle
from contrast import contrast
from hostmesh._draw._palette import COLOURS
from hostmesh._draw._picture import UNLIMITED
from hostmesh._draw._svg import svg
from meshes import Kind, Spec
from test_draw_text import Cells, expected, split
from test_plan import Case, cases

NS = "{http://www.w3.org/2000/svg}"
Place = tuple[float, float]


def placed(
    node: ElementTree.Element, at: Place = (0, 0)
) -> Iterator[tuple[ElementTree.Element, Place]]:
    """All elements below a node, with the place of their own origin."""
    if moved := re.fullmatch(r"translate\((\S+) (\S+)\)", node.get("transform", "")):
        at = at[0] + float(moved[1]), at[1] + float(moved[2])
    yield node, at
    for child in node:
        yield from placed(child, at)


def below(node: ElementTree.Element, name: str) -> list[tuple[ElementTree.Element, Place]]:
    """The elements of a class or tag below a node, with their places."""
    found = [(e, at) for e, at in placed(node) if name in (e.get("class"), e.tag.removeprefix(NS))]
    return [(e, (at[0] + float(e.get("x", 0)), at[1] + float(e.get("y", 0)))) for e, at in found]


def words(node: ElementTree.Element) -> str:
    return node.text or ""


def parsed(section: ElementTree.Element, rank: int) -> tuple[Cells, list[tuple[str, ...]]]:
    """The devices of each cell by its labels, and the holes. Labels are told by where they stand."""
    found: Cells = {}
    holes: list[tuple[str, ...]] = []
    for panel, _ in below(section, "panel"):
        rows, columns = below(panel, "r"), below(panel, "c")
        names = [words(e) for e, _ in below(panel, "n")]
        titles = [name for name in names if name and name[-1] not in "→↓"]
        assert len(titles) == (rank > 2)
        leading = [
            part.partition(") ")[2] or part.split(" ", 2)[-1]
            for title in titles
            for part in split(f"{title}:")
        ]
        boxes: list[tuple[float, float, float, float]] = []
        for cell, (x, y) in below(panel, "cell"):
            sheets = [
                (x + float(e.attrib["x"]), y + float(e.attrib["y"]), e.attrib)
                for e, _ in below(cell, "rect")
            ]
            right = max(a + float(size["width"]) for a, _, size in sheets)
            bottom = max(b + float(size["height"]) for _, b, size in sheets)
            boxes.append((x, y, right, bottom))
            row = [words(e) for e, at in rows if y < at[1] <= y + 24]
            column = [words(e) for e, at in columns if x < at[0] < right]
            key = (*leading, *row, *column)
            assert len(key) == rank
            found.setdefault(key, set())  # several cells of an empty array have one label
            for sheet in cell:
                box, text = sheet
                assert 7.2 * len(words(text)) + 7 <= float(box.attrib["width"]), "text sticks out"
                if sheet.get("class") == "hole":
                    assert "url(#" in box.attrib["fill"]
                    holes.append(key)
                else:
                    process, device = map(int, re.fullmatch(r"p(\d+) d(\d+)", words(text)).groups())
                    assert sheet.attrib["class"].split()[0] == f"p{process % len(COLOURS)}"
                    assert (process, device) not in found[key]
                    found[key].add((process, device))
        for k, (left, top, right, bottom) in enumerate(boxes):
            for a, b, c, d in boxes[:k]:
                assert right < a or c < left or bottom < b or d < top, "cells overlap"
    return found, holes


def sections(plan: hm.Plan) -> list[ElementTree.Element]:
    whole = ElementTree.fromstring(svg(plan, limits=UNLIMITED))
    width, height = float(whole.attrib["width"]), float(whole.attrib["height"])
    for e, (x, y) in below(whole, "text"):
        assert 0 <= x <= width - (3 * len(words(e)) if e.get("class") == "c" else 0)
        assert 0 <= y <= height
    found = [section for section, _ in below(whole, "section")]
    titles = [words(below(section, "t")[0][0]).split(" ")[0] for section in found]
    assert titles == ["Mesh", "Global", "Process"][: len(titles)]
    return found


def check(layout: oracle.Layout, plan: hm.Plan, process: int) -> None:
    mesh, array, local = sections(plan)
    of_mesh, of_array, of_local = expected(layout, plan.global_shape, process)
    assert parsed(mesh, len(layout.axes)) == (of_mesh, [])
    assert parsed(array, layout.rank) == (of_array, [])
    assert len(below(array, "cell")) == math.prod(layout.counts)
    cells, holes = parsed(local, layout.rank)
    assert cells == of_local
    assert {label for label, devices in of_local.items() if not devices} <= set(holes)
    assert len(holes) == len(layout.product(process)) - len(layout.chunks(process))


@settings(
    max_examples=3000,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
@given(cases())
def test_labels_of_random_layouts(case: Case) -> None:
    process = case.layout.processes[-1]
    check(
        case.layout,
        hm.plan(case.topology, case.spec, global_shape=case.shape, process=process),
        process,
    )


@pytest.mark.parametrize(("name", "kind", "spec", "layout"), list(oracle.layouts()))
def test_labels_of_each_kind_of_mesh(
    name: str, kind: Kind, spec: Spec, layout: oracle.Layout
) -> None:
    topology = hm.Topology(kind.axes, kind.owners)
    for process in range(4):
        check(layout, hm.plan(topology, spec, global_shape=(8, 16, 24), process=process), process)


@pytest.mark.parametrize("processes", [1, 8, 64, 512])
@pytest.mark.parametrize("order", ["block", "interleaved"])
@pytest.mark.parametrize("sizes", [(512,), (16, 32), (2, 256), (8, 8, 8), (4, 4, 4, 8), (64, 2, 4)])
def test_512_devices_in_200_kilobytes(sizes: tuple[int, ...], order: str, processes: int) -> None:
    names = [f"axis_{i}" for i in range(len(sizes))]
    topology = hm.Topology.build(dict(zip(names, sizes, strict=True)), processes, order)
    for spec in ((), tuple(names), (tuple(names),), (names[0],)):
        shape = (1 << 20,) * max(2, len(spec))
        whole = svg(hm.plan(topology, spec, global_shape=shape, process=processes - 1))
        assert len(whole.encode()) < 200_000
        ElementTree.fromstring(whole)


def test_all_512_devices_are_shown() -> None:
    topology = hm.Topology.build({"data": 32, "model": 16}, processes=64)
    whole = ElementTree.fromstring(svg(hm.plan(topology, ("data", "model"), global_shape=(64, 64))))
    for section, _ in below(whole, "section"):
        labels = [words(e) for e, _ in below(section, "text")]
        assert {f"p{d // 8} d{d}" for d in range(512)} <= set(labels)


def test_larger_ones_are_abridged_with_counts() -> None:
    topology = hm.Topology.build({"pod": 32, "data": 32, "model": 8}, processes=1024)
    whole = svg(hm.plan(topology, ("model", None, "data"), global_shape=(8, 128, 4096), process=2))
    assert len(whole.encode()) < 200_000
    shown = [words(e) for e, _ in below(ElementTree.fromstring(whole), "text")]
    for label in ("and 28 more panels like these", "+29 processes", "and 1,008 more processes"):
        assert any(label in line for line in shown), label


def test_it_is_told_to_those_who_do_not_see_it() -> None:
    topology = hm.Topology({"x": 2, "y": 2}, [0, 1, 1, 0])
    plan = hm.plan(topology, ("x", "y"), global_shape=(4, 6), process=0)
    whole = ElementTree.fromstring(svg(plan, name="['w'] int8"))
    assert whole.get("role") == "img"
    title, spoken = whole[0], whole[1]
    assert (title.tag, spoken.tag) == (f"{NS}title", f"{NS}desc")
    assert whole.get("aria-labelledby") == f"{title.get('id')} {spoken.get('id')}"
    assert words(title) == "['w'] int8 (4, 6) cut by P('x', 'y') on mesh x=2 x y=2 of 2 processes"
    for part in (
        "Mesh x=2 x y=2: 4 devices",
        "dim 0 (x) 0:2, dim 1 (y) 3:6: p1 d1.",
        "0:2 → 0:2, dim 1 (y) 3:6 → 3:6: no device.",
    ):
        assert part in words(spoken)


def test_legend_has_the_signs_that_the_picture_has() -> None:
    def legend(spec: tuple[str, ...], process: int | None) -> list[str]:
        topology = hm.Topology({"x": 2, "y": 2}, [0, 1, 1, 0])
        plan = hm.plan(topology, spec, global_shape=(4, 4), process=process)
        whole = ElementTree.fromstring(svg(plan))
        inside = {id(e) for s, _ in below(whole, "section") for e, _ in placed(s)}
        return [words(e) for e, _ in below(whole, "text") if id(e) not in inside][1:]

    processes = ["p0", "process 0", "p1", "process 1"]
    stack = "sheets in a stack: devices that hold equal copies"
    hatched = "hatched: on none of the process's devices, not read"
    assert legend(("x", "y"), None) == processes
    assert legend(("x",), None) == [*processes, stack]
    assert legend(("x", "y"), 0) == [*processes, "thick border: process 0", hatched]


def test_the_devices_of_the_plans_process_have_a_thick_border() -> None:
    topology = hm.Topology.build({"x": 4, "y": 2}, processes=4, order="interleaved")
    plan = hm.plan(topology, "x", global_shape=(8, 2), process=2)
    for section, thick in zip(sections(plan), (["p2 d2", "p2 d6"],) * 2 + ([],), strict=True):
        sheets = [e for e, _ in below(section, "g") if "mine" in e.get("class", "").split()]
        assert [words(sheet[1]) for sheet in sheets] == thick


def test_sheets_of_a_stack_leave_every_label_in_sight() -> None:
    topology = hm.Topology.build({"x": 12}, processes=3)
    whole = ElementTree.fromstring(svg(hm.plan(topology, (), global_shape=(4,)), limits=UNLIMITED))
    array = below(whole, "section")[1][0]
    ((cell, _),) = below(array, "cell")
    assert len(cell) == 12
    for behind, front in zip(cell, list(cell)[1:], strict=False):  # drawn in this order
        baseline = float(behind[1].attrib["y"])
        assert float(behind[0].attrib["y"]) < baseline < float(front[0].attrib["y"]) - 3
        assert float(front[0].attrib["x"]) > float(behind[0].attrib["x"])


def test_names_that_xml_has_no_way_to_write() -> None:
    topology = hm.Topology.build({"a<&'\"\x00\ud800": 2}, processes=2)
    plan = hm.plan(topology, ("a<&'\"\x00\ud800",), global_shape=(4,), process=1)
    whole = ElementTree.fromstring(svg(plan, name="]]>\x1b"))
    assert any("dim 0 (a<&'\"\ufffd\ufffd) →" in words(e) for e, _ in below(whole, "text"))


def test_text_stands_out() -> None:
    """By WCAG's 4.5 to 1: on the colours of processes, and in the light and the dark scheme."""
    for colour, ink in COLOURS:
        assert contrast(colour, ink) >= 4.5
    style = svg(hm.plan(hm.Topology.build({"x": 1}, 1), (), global_shape=(1,)))
    light, dark = style.split("@media", 1)
    dark = dark.split("}}")[0]
    for scheme in (light, dark):
        rules = dict(re.findall(r"\.hm (text|\.n|\.bg|\.more rect)\{fill:(#\w+)", scheme))
        ground = rules[".bg"]
        assert contrast(rules["text"], ground) >= 7
        assert contrast(rules[".n"], ground) >= 4.5
        assert contrast(rules["text"], rules[".more rect"]) >= 4.5


def test_the_colours_of_processes_stay_apart_without_red_or_green() -> None:
    """Seen with no cones of one kind (Vienot, Brettel and Mollon, 1999), no two are near."""
    to_lms = np.array(
        [[17.8824, 43.5161, 4.11935], [3.45565, 27.1554, 3.86714], [0.0299566, 0.184309, 1.46709]]
    )
    protan = np.array([[0, 2.02344, -2.52581], [0, 1, 0], [0, 0, 1]])
    deutan = np.array([[1, 0, 0], [0.494207, 0, 1.24827], [0, 0, 1]])
    rgb = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c, _ in COLOURS]) / 255
    for seen in (np.eye(3), protan, deutan):
        looks = rgb**2.2 @ (np.linalg.inv(to_lms) @ seen @ to_lms).T
        apart = np.linalg.norm(looks[:, None] - looks, axis=-1) + np.eye(len(looks))
        assert apart.min() > 0.05
