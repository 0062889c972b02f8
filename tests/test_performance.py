"""All figures of speed in the documentation are those of one run of `hostmesh bench`, and say its losses."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
FIGURES = ROOT / "docs/performance/figures.json"
EMPTY = "<!-- figures: scripts/performance -->\n<!-- /figures -->"


def script() -> ModuleType:
    place = importlib.util.spec_from_file_location("performance", ROOT / "scripts/performance.py")
    assert place is not None
    assert place.loader is not None
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


performance = script()


def claim(name: str, ours: float, peer: float | None, bar: float | None, **more: Any) -> Any:
    ratio = None if peer is None else peer / ours
    beside = None if peer is None else {"name": "JAX", "median": peer, "low": peer, "high": peer}
    return {
        "name": name, "sentence": f"{name} of a | b", "unit": "s", "rounds": 15,
        "ours": {"median": ours, "low": ours, "high": ours}, "peer": beside, "bounds": [],
        "ratio": ratio, "ratio_low": ratio and 0.9 * ratio, "ratio_high": ratio and 1.1 * ratio,
        "bar": bar, "holds": None if ratio is None or bar is None else ratio >= bar, "why": None,
        **more,
    }  # fmt: skip


FAST = claim("leaves_in", 0.002, 0.009, 4.0, bounds=[{"name": "one copy", "median": 0.001}])
MISSED = claim("barrier", 0.010, 0.016, 2.0, why="the store is far")
SLOWER = claim("drop_in", 0.125, 0.12, 0.95)
FAR = claim("scalar", 0.009, 0.018, None, bounds=[{"name": "requests", "median": 0.002}])
ALONE = claim("save", 0.5, None, 2.0, rounds=3, why="Orbax is not installed")


def made_up(*claims: Any) -> Any:
    points = [
        {"x": 1024, "ours": 0.002, "peer": 0.001, "bound": None},
        {"x": 2**20, "ours": 0.003, "peer": 0.009, "bound": 0.001},
    ]
    curve = {"name": "sizes", "title": "One leaf", "x": "bytes", "peer": "JAX", "bound": "one copy"}
    return {
        "schema": 1, "measured_by": "hostmesh bench", "date": "2001-02-03", "rounds": 15,
        "machine": {"cpu": "A CPU", "cores": 3, "memory_bytes": 2**34, "load": 0.25, "accelerators": []},
        "versions": {"python": "3.11.1", "jax": "0.10.2", "jaxlib": "0.10.1", "hostmesh": "0.1.0"},
        "layout": {"processes": 4, "devices": 2}, "claims": list(claims),
        "curves": [{**curve, "points": points}],
    }  # fmt: skip


def made(*claims: Any) -> dict[str, str]:
    return performance.outputs(made_up(*claims), f"before 7\n{EMPTY}\nafter")


def rows(text: str) -> dict[str, list[str]]:
    """The cells of a table's rows, by the name of the claim that they begin with."""
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line[:1] == "|"]
    named = {
        re.split(r"\W", row[0].strip(" `"))[0]: [cell.strip() for cell in row] for row in cells
    }
    return {name: row for name, row in named.items() if name}


def test_what_stands_there_is_made_of_the_figures_that_stand_there() -> None:
    """Or there are no figures at all."""
    readme = README.read_text("utf-8")
    if not FIGURES.exists():
        assert EMPTY in readme
        return
    expected = performance.outputs(json.loads(FIGURES.read_text("utf-8")), readme)
    assert {
        name for name in expected if (ROOT / name).read_text("utf-8") != expected[name]
    } == set()
    drawn = {str(path.relative_to(ROOT)) for path in FIGURES.parent.iterdir()}
    assert drawn == {name for name in expected if name.startswith("docs/performance/")}


SPEED = re.compile(r"\b\d[\d.,]*\s?(?:[x×](?![\w ]*\d)|times (?:as|faster)|[mµu]s\b|[KMG]i?B/s)")


def test_readme_has_no_other_figure_of_speed() -> None:
    outside = performance.BLOCK.sub("", README.read_text("utf-8"))
    assert SPEED.findall(outside) == []
    for words in ("1.9x as fast", "takes 12 ms", "at 3.1 GB/s", "2 times faster", "1.9× faster"):
        assert SPEED.search(words), words
    assert not SPEED.search("a 4 x 2 mesh of 64x16 float32")


def test_the_table_has_every_claim_with_its_figures() -> None:
    page = made(FAST, MISSED, SLOWER, FAR, ALONE)["docs/performance.md"]
    assert rows(page) == {
        "leaves_in": [r"`leaves_in`: leaves_in of a \| b", "JAX: 9 ms", "2 ms",
                      "4.5x (4.05 to 4.95)", "4x: holds", "2x one copy (1 ms)"],
        "barrier": [r"`barrier`: barrier of a \| b", "JAX: 16 ms", "10 ms",
                    "1.6x (1.44 to 1.76)", "2x: **MISSED**", ""],
        "drop_in": [r"`drop_in`: drop_in of a \| b", "JAX: 120 ms", "125 ms",
                    "0.96x (0.86 to 1.06)", "0.95x: holds", ""],
        "scalar": [r"`scalar`: scalar of a \| b", "JAX: 18 ms", "9 ms",
                   "2x (1.8 to 2.2)", "", "4.5x requests (2 ms)"],
        "save": [r"`save`: save of a \| b", "not there", "500 ms", "", "2x: not known", ""],
    }  # fmt: skip
    for words in ("Rounds: 3 to 15,", "Measured by `hostmesh bench` on 2001-02-03.", "A CPU, 3 cores, 16 GiB", "jaxlib 0.10.1",
                  "load before was 0.25", "4 processes with 2 CPU devices", "no accelerator"):  # fmt: skip
        assert words in page, words
    assert "Of 3 claims 2 hold; missed: `barrier` (1.6x where 2x is claimed)." in page


def test_losses_are_said_in_words() -> None:
    page = made(FAST, MISSED, SLOWER, FAR, ALONE)["docs/performance.md"]
    section = page.partition("## Where hostmesh loses")[2].partition("\n## ")[0]
    assert [line for line in section.splitlines() if line[:1] == "-"] == [
        "- `barrier`: misses its bar, 1.6x where 2x is claimed; the store is far.",
        "- `drop_in`: takes 1.04 times as long as JAX, which its bar allows.",
        "- `scalar`: takes 4.5 times as long as its bound, requests.",
        "- `save`: Orbax is not installed.",
    ]
    assert "Nowhere in this run." in made(FAST)["docs/performance.md"]
    amiss = claim("scalar", 0.008, 0.018, None, bounds=[{"name": "one copy", "median": 0.009}])
    words = "- `scalar`: is faster than its bound, one copy, which this run measured amiss."
    assert words in made(amiss)["docs/performance.md"]
    assert "Rounds: 15." in made(amiss)["docs/performance.md"]
    assert "Slower than JAX: 1 KiB." in page


def test_curves_are_pictures_with_their_last_point_in_words() -> None:
    files = made(FAST)
    words = "1 MiB: hostmesh 3 ms, JAX 9 ms, one copy 1 ms"
    assert f"![One leaf: {words}](performance/sizes.svg)" in files["docs/performance.md"]
    whole = ElementTree.fromstring(files["docs/performance/sizes.svg"])
    assert words in (whole.findtext("{http://www.w3.org/2000/svg}desc") or "")
    nothing = made_up(FAST)
    nothing["curves"][0]["points"] = []
    page = performance.outputs(nothing, EMPTY)["docs/performance.md"]
    assert "### One leaf\n\nNot measured in this run." in page


def test_readme_has_figures_in_its_block_alone() -> None:
    readme = made(FAST, MISSED, SLOWER)["README.md"]
    assert readme.startswith("before 7\n<!-- figures: scripts/performance -->\n")
    assert readme.endswith("<!-- /figures -->\nafter")
    assert rows(readme)["leaves_in"][1:] == ["JAX: 9 ms", "2 ms", "4.5x (4.05 to 4.95)"]
    assert "missed: `barrier` (1.6x" in readme
    again = performance.outputs(made_up(FAST, MISSED, SLOWER), readme)["README.md"]
    assert again == readme
    with pytest.raises(SystemExit, match="not one block"):
        performance.outputs(made_up(FAST), "no block")


def test_readme_says_what_the_same_is() -> None:
    feeder = claim(
        "feeder", 1.0, 1.0, None, sentence="a Feeder of 40 steps, within twice the steps"
    )
    other = claim("feeder_grain", 1.0, 1.0, None, sentence="the same against Grain")
    flax = claim("feeder_flax", 1.0, 1.5, None, sentence="the same against flax, which waits")
    files = made(feeder, other, flax)
    assert "| a Feeder of 40 steps against flax, which waits | JAX: 1.5 s |" in files["README.md"]
    assert "| `feeder_flax`: the same against flax" in files["docs/performance.md"]


def test_the_script_writes_what_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = made_up(FAST, MISSED)
    (tmp_path / "figures.json").write_text(json.dumps(figures))
    (tmp_path / "README.md").write_text(EMPTY)
    (tmp_path / "docs/performance").mkdir(parents=True)
    (tmp_path / "docs/performance/gone.svg").write_text("of an older run")
    monkeypatch.setattr(performance, "ROOT", tmp_path)
    performance.main(str(tmp_path / "figures.json"))
    assert json.loads((tmp_path / "docs/performance/figures.json").read_text()) == figures
    for name, text in performance.outputs(figures, EMPTY).items():
        assert (tmp_path / name).read_text("utf-8") == text
    assert not (tmp_path / "docs/performance/gone.svg").exists()
