"""The notebooks of `examples/` run, and show what they are stored with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import hostmesh as hm

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SHOWN = {"layouts": 7, "cluster": 5}  # how many cells show a result


def shown(notebook: Any) -> list[dict[str, str]]:
    """What each code cell puts out, by kind."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(output.output_type == "execute_result" for c in cells for output in c.outputs)
    return [dict(output.data) for cell in cells for output in cell.outputs]


def stored(name: str) -> Any:
    return nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)


def test_each_is_tested_and_short() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.ipynb")} == SHOWN.keys()
    for name in SHOWN:
        cells = [cell.source for cell in stored(name).cells if cell.cell_type == "code"]
        assert len("\n".join(cells).splitlines()) < 80


@pytest.mark.parametrize("name", SHOWN)
def test_it_runs_and_shows_what_it_is_stored_with(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    for variable in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES"):
        monkeypatch.delenv(variable, raising=False)  # it sets the number of devices itself
    notebook = stored(name)
    before = shown(notebook)
    assert len(before) == SHOWN[name]
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    assert shown(notebook) == before


def test_its_first_three_are_the_reference_examples_of_the_design() -> None:
    line = hm.Topology.build({"x": 8}, processes=4)
    grid = hm.Topology.build({"host": 4, "dev": 2}, processes=4)
    plans = [
        hm.plan(line, "x", global_shape=(16,), process=1),
        hm.plan(grid, "host", global_shape=(16,), process=1),
        hm.plan(grid, (), global_shape=(4,), process=1),
    ]
    for plan, output in zip(plans, shown(stored("layouts")), strict=False):
        assert plan.local_shape() == (4,)
        assert output["image/svg+xml"].strip() == plan._repr_svg_().strip()
