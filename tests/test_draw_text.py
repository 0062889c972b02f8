"""Text pictures: their labels, parsed back, against the brute-force oracle."""

from __future__ import annotations

import itertools
import re

from hypothesis import HealthCheck, given, settings

import hostmesh as hm
import oracle
from hostmesh._draw._text import text
from test_plan import Case, cases

# (process, device) pairs by the labels of panel, row and column.
Cells = dict[tuple[str, ...], set[tuple[int, int]]]


def parsed(section: str, rank: int) -> Cells:
    """(process, device) pairs of each cell of a section, by the labels of its panel, row, column."""
    found: Cells = {}
    leading: list[str] = []
    columns: list[str] = []
    row, before = "", ""
    joined: list[str] = []  # what stands in each column since the last rule
    for line in section.splitlines():
        if line.endswith(":") and "│" not in line:
            leading = [part.partition(") ")[2] or part.split(" ", 2)[-1] for part in split(line)]
        if "┌" in line:
            columns = re.findall(r"\d+(?::\d+)?(?: → \d+:\d+| \(all\))?", before.rpartition("↓")[2])
        if line.strip()[:1] in {"┌", "├", "└"}:
            for words in filter(None, joined):
                assert re.fullmatch(r"░+|p\d+ d\d+(=(p\d+ )?d\d+)*", words), "copies are not joined"
            joined = [""] * (1 + sum(map(line.count, "┬┼")))
        if "│" in line:
            label, *cells = line.split("│")[:-1]
            row = label.strip() or row
            for c, cell in enumerate(cells):
                at = (*leading, row, *columns[c : c + 1])
                held = found.setdefault(at[len(at) - rank :] if rank else (), set())
                joined[c] += cell.strip(" *")
                for words in re.findall(r"p\d+ d\d+(?:=d\d+)*", cell):
                    process, *devices = map(int, re.findall(r"\d+", words))
                    held |= {(process, device) for device in devices}
        before = line
    return found


def split(line: str) -> list[str]:
    return re.split(r", (?=dim |[a-d] )", line[:-1])


def expected(layout: oracle.Layout, shape: tuple[int, ...], process: int) -> tuple[Cells, ...]:
    """What `parsed` must find in the mesh, in the array and in what a process passes."""
    mesh: Cells = {
        tuple(map(str, at)): {(int(layout.owners[at]), position)}
        for position, at in layout.devices()
    }
    shard = [size // n for size, n in zip(shape, layout.counts, strict=True)]

    def place(number: int, size: int) -> str:
        return f"{number * size}:{number * size + size}"

    array: Cells = {}
    for position, at in layout.devices():
        label = tuple(map(place, layout.chunk(at), shard))
        array.setdefault(label, set()).add((int(layout.owners[at]), position))
    held = layout.held(process)
    local: Cells = {}
    for ranks in itertools.product(*(range(len(numbers)) for numbers in held)):
        chunk = tuple(numbers[k] for numbers, k in zip(held, ranks, strict=True))
        label = tuple(
            f"{place(k, s)} → {place(c, s)}" if n > 1 else f"0:{s} (all)"
            for k, c, n, s in zip(ranks, chunk, layout.counts, shard, strict=True)
        )
        local.setdefault(label, set()).update(
            (process, position)
            for position, at in layout.devices(process)
            if layout.chunk(at) == chunk
        )
    return mesh, array, local


@settings(
    max_examples=3000,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
@given(cases())
def test_labels_of_random_layouts(case: Case) -> None:
    layout, rank = case.layout, case.layout.rank
    process = layout.processes[0]
    plan = hm.plan(case.topology, case.spec, global_shape=case.shape, process=process)
    whole = text(plan, ladder=False).plain
    mesh, array, local = re.split(r"\n\n(?=Global array|Process \d)", whole)

    of_mesh, of_array, of_local = expected(layout, case.shape, process)
    assert parsed(mesh, len(layout.axes)) == of_mesh
    assert parsed(array, rank) == of_array
    assert parsed(local, rank) == of_local
    assert local.count("░") > 0 if plan.missing() else "░" not in local


def test_a_hole_is_hatched_and_counted() -> None:
    topology = hm.Topology({"x": 2, "y": 2}, [0, 1, 1, 0])
    picture = text(hm.plan(topology, ("x", "y"), global_shape=(4, 4), process=0)).plain
    assert "2 hatched chunks on none of its devices" in " ".join(picture.split())
    assert re.search(r"2:4 → 2:4 │ ░+ │ p0 d3 +│", picture)


def test_the_devices_of_the_plans_process_are_marked_and_no_others() -> None:
    topology = hm.Topology.build({"x": 4, "y": 2}, processes=4, order="interleaved")
    layout = hm.plan(topology, "x", global_shape=(8, 2), process=2)
    mesh, array, local = text(layout).plain.split("\n\n")
    for section in (mesh, array):
        assert re.findall(r"\*(p\d d\d)", section) == ["p2 d2", "p2 d6"]
        assert "* marks process 2" in " ".join(section.split())
    assert "*" not in local
    assert "*" not in text(hm.plan(topology, "x", global_shape=(8, 2))).plain
    absent = hm.plan(hm.Topology({"x": 2}, [0, 1]), "x", global_shape=(2,), process=5)
    assert "*" not in text(absent).plain


def test_chunks_that_lie_apart_are_said_to_be_joined() -> None:
    for order, apart in (("interleaved", True), ("block", False)):
        topology = hm.Topology.build({"x": 4}, processes=2, order=order)
        said = " ".join(text(hm.plan(topology, "x", global_shape=(8,), process=0)).plain.split())
        assert ("those between belong to other processes" in said) == apart
        assert ("not JAX's device id" in said) == apart


def test_large_meshes_are_abridged_to_the_width() -> None:
    topology = hm.Topology.build({"pod": 8, "data": 64, "model": 16}, processes=2048)
    plan = hm.plan(topology, ("data", None, "model"), global_shape=(64, 128, 4096), process=2)
    lines = text(plan, 80).plain.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) < 120
    assert "and 6 more panels like these" in lines
    assert any("+6 processes" in line for line in lines)


def test_ascii_has_no_other_characters() -> None:
    topology = hm.Topology({"x": 2, "y": 2}, [0, 1, 1, 0])
    plan = hm.plan(topology, ("x", "y"), global_shape=(4, 4), process=0)
    assert text(plan, ascii_only=True).plain.isascii()
