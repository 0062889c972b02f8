"""Curves of `hostmesh bench` as SVG, read back: marks stand where the axes say, by log of the values."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from contrast import contrast
from hostmesh import _cli
from hostmesh._bench import _curves, _record, _run
from hostmesh._bench._plot import plot, write_plots

NS = "{http://www.w3.org/2000/svg}"
SECONDS = {"ms": 1e-3, "s": 1.0}
BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20}
SERIES = ("ours", "peer", "bound")


def curve(points: list[tuple[Any, ...]], x: str = "bytes", **more: Any) -> Any:
    told = [dict(zip(("x", *SERIES), point, strict=True)) for point in points]
    return {"name": "a", "title": "One <leaf> & more", "x": x, "peer": "JAX", "bound": "one copy",
            "points": told, **more}  # fmt: skip


SIZES = curve([(2**k, 1e-4 + 2**k / 4e9, 3e-4 + 2**k / 3e9, 2**k / 9e9) for k in range(10, 29, 2)])
PROCESSES = curve([(n, n / 1000, n / 400, None) for n in (1, 2, 4, 8, 16)], "processes", bound=None)
LEAVES = curve([(1, 4e-5, None, 2e-5), (50, None, None, None), (3000, 0.09, 2.5, 0)], "leaves")
DEVICES = curve([(n, 3e-4 + n * 1e-9, None, None) for n in (8, 64, 512, 8192)], "devices")
ONE = curve([(8192, 0.001, 0.002, None)], "devices")
ALL = [SIZES, PROCESSES, LEAVES, DEVICES, ONE]


def number(words: str, units: dict[str, float]) -> float:
    value, _, unit = words.replace(",", "").partition(" ")
    return float(value) * units.get(unit, 1)


def axis(
    whole: ElementTree.Element, kind: str, place: str, units: Any
) -> list[tuple[float, float]]:
    """The labels of an axis as values, with where they stand."""
    labels = [text for text in whole.iter(f"{NS}text") if kind in text.attrib["class"].split()]
    return [(number(label.text or "", units), float(label.attrib[place])) for label in labels]


def between(value: float, axis: list[tuple[float, float]]) -> float:
    """Where a value belongs on a logarithmic axis of which two labels are known."""
    (low, start), (high, end) = min(axis), max(axis)
    return start + (end - start) * math.log10(value / low) / math.log10(high / low)


def marks(whole: ElementTree.Element, series: str) -> list[tuple[float, float, str]]:
    """Where the marks of a series stand, and what is said of them, in order."""
    found: list[tuple[float, float, str]] = []
    for group in whole.iter(f"{NS}g"):
        if group.attrib.get("class") == series and group.find(f"{NS}polyline") is not None:
            for mark in group.iter(f"{NS}g"):
                if mark.attrib["class"] == "mark":
                    x, y = map(float, re.findall(r"[\d.]+", mark.attrib["transform"]))
                    found.append((x, y, mark.findtext(f"{NS}title") or ""))
    return found


@pytest.mark.parametrize("told", [SIZES, PROCESSES, LEAVES, DEVICES], ids=lambda told: told["x"])
def test_marks_stand_at_their_values(told: Any) -> None:
    whole = ElementTree.fromstring(plot(told))
    across = axis(whole, "x", "x", BYTES)
    down = axis(whole, "y", "y", SECONDS)  # text stands 4 below its line
    assert all(y - 4 == pytest.approx(between(value, down) - 4, abs=0.02) for value, y in down)
    for series in SERIES:
        expected = [(point["x"], point[series]) for point in told["points"] if point[series]]
        found = marks(whole, series)
        assert len(found) == len(expected)
        for (x, y, _), (size, seconds) in zip(found, expected, strict=True):
            assert x == pytest.approx(between(size, across), abs=0.02)
            assert y == pytest.approx(between(seconds, down) - 4, abs=0.02)
        lines = [g.find(f"{NS}polyline") for g in whole.iter(f"{NS}g") if g.get("class") == series]
        drawn = [line.attrib["points"] for line in lines if line is not None]
        assert drawn == ([" ".join(f"{x:.2f},{y:.2f}" for x, y, _ in found)] if found else [])


@pytest.mark.parametrize("told", ALL, ids=lambda told: f"{told['x']}{len(told['points'])}")
def test_marks_and_description_say_the_values(told: Any) -> None:
    whole = ElementTree.fromstring(plot(told))
    names = {"ours": "hostmesh", "peer": "JAX", "bound": "one copy"}
    said = whole.findtext(f"{NS}desc") or ""
    for series in SERIES:
        values = [point[series] for point in told["points"] if point[series]]
        for value, (_, _, words) in zip(values, marks(whole, series), strict=True):
            name, _, rest = words.partition(", ")
            size, _, seconds = rest.partition(": ")
            assert name == names[series]
            assert number(seconds, SECONDS) == pytest.approx(value, rel=0.005)  # three digits
            assert size in said
            assert f"{name} {seconds}" in said


def test_the_largest_size_has_a_label_and_none_touch() -> None:
    crowded = curve([(n, 0.001, 0.002, None) for n in range(1000, 3001, 20)], "leaves")
    places = axis(ElementTree.fromstring(plot(crowded)), "x", "x", {})
    assert places[0][0] == 3000
    assert len(places) > 5
    assert all(a - b > 5 * 6 for (_, a), (_, b) in itertools.pairwise(places))


def test_the_legend_names_what_was_measured_only() -> None:
    names = [
        [text.text for text in ElementTree.fromstring(plot(told)).iter(f"{NS}text")
         if text.attrib["class"] == "name"]
        for told in (SIZES, PROCESSES, DEVICES, curve([]))
    ]  # fmt: skip
    assert names == [["hostmesh", "JAX", "one copy"], ["hostmesh", "JAX"], ["hostmesh"], []]


def test_a_single_size_stands_in_the_middle() -> None:
    whole = ElementTree.fromstring(plot(ONE))
    down = axis(whole, "y", "y", SECONDS)
    frame = next(box for box in whole.iter(f"{NS}rect") if box.attrib.get("class") == "frame")
    middle = float(frame.attrib["x"]) + float(frame.attrib["width"]) / 2
    for series, value in (("ours", 0.001), ("peer", 0.002)):
        ((x, y, words),) = marks(whole, series)
        assert (x, y) == pytest.approx((middle, between(value, down) - 4), abs=0.02)
        assert "8,192 devices" in words


@pytest.mark.parametrize("points", [[], [(8, None, None, None)]])
def test_nothing_measured_says_so(points: list[Any]) -> None:
    whole = ElementTree.fromstring(plot(curve(points)))
    assert whole.findtext(f"{NS}desc") == "Not measured."
    assert "not measured" in [text.text for text in whole.iter(f"{NS}text")]
    assert not any(marks(whole, series) for series in SERIES)
    assert axis(whole, "y", "y", SECONDS) == []


def test_marks_differ_without_colour() -> None:
    """By shape and by how the line is broken, so that print works."""
    whole = ElementTree.fromstring(plot(SIZES))
    shapes = {
        next(g for g in whole.iter(f"{NS}g") if g.get("class") == series)
        .find(f"{NS}g[@class='mark']")[-1]
        .tag  # type: ignore[index]
        for series in SERIES
    }
    assert len(shapes) == 3
    broken = re.findall(r"\.hmb \.(\w+) \.line\{stroke-dasharray:([^}]*)", plot(SIZES))
    assert len(dict(broken)) == len({how for _, how in broken}) == 2


def test_words_are_escaped_and_named_for_screen_readers(tmp_path: Path) -> None:
    (path,) = write_plots([SIZES], tmp_path / "new" / "folder")
    assert path.name == "a.svg"
    whole = ElementTree.fromstring(path.read_text("utf-8"))
    named = {one.attrib["id"]: one.text for one in whole if "id" in one.attrib}
    title, described = whole.attrib["aria-labelledby"].split()
    assert whole.attrib["role"] == "img"
    assert named[title] == "One <leaf> & more"
    assert (named[described] or "").startswith("1 KiB: hostmesh 0.1 ms, JAX 0.3 ms, one copy ")
    assert ElementTree.fromstring(plot(curve([], title="]]>\x1b"))) is not None


def test_the_command_draws_the_curves_that_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = tuple(_record.Point(**point) for point in SIZES["points"])
    measured = _record.Drawn("a", SIZES["title"], "bytes", "JAX", "one copy", points)
    monkeypatch.setattr(_curves, "run", lambda *told: [measured])
    monkeypatch.setattr(_run, "run", lambda *told: [])
    folder = tmp_path / "new" / "curves"
    done = CliRunner().invoke(_cli.main, ["bench", "leaves_in", "--svg", str(folder)])
    assert done.exit_code == 0, done.output
    assert {path.name: path.read_text("utf-8") for path in folder.iterdir()} == {
        "a.svg": plot(SIZES)
    }
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    refused = CliRunner().invoke(_cli.main, ["bench", "--svg", str(in_the_way)])
    assert refused.exit_code == 2
    assert "--svg" in refused.output
    assert str(in_the_way) in refused.output


def test_lines_and_text_stand_out_in_light_and_dark() -> None:
    """By WCAG: 4.5 to 1 for text, 3 to 1 for what has to be told apart."""
    light, dark = plot(SIZES).split("@media", 1)
    dark, series = dark.split("}}", 1)
    lines = re.findall(r"\.(?:ours|peer) \.mark\{stroke:(#\w+)", series)
    assert len(lines) == 2
    for scheme in (light, dark):
        rules = dict(re.findall(r"\.hmb (text|\.n|\.bg)\{fill:(#\w+)", scheme))
        bound = re.findall(r"\.bound \.mark\{stroke:(#\w+)", scheme)
        assert contrast(rules["text"], rules[".bg"]) >= 7
        assert contrast(rules[".n"], rules[".bg"]) >= 4.5
        assert min(contrast(line, rules[".bg"]) for line in lines + bound) >= 3
