"""`examples/layouts.ipynb` runs, and its pictures are those that it is stored with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import hostmesh as hm

NOTEBOOK = Path(__file__).resolve().parent.parent / "examples" / "layouts.ipynb"


def shown(notebook: Any) -> list[dict[str, str]]:
    """What each code cell puts out, by kind."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(output.output_type == "execute_result" for c in cells for output in c.outputs)
    return [dict(output.data) for cell in cells for output in cell.outputs]


@pytest.fixture(scope="module")
def stored() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)


def test_it_runs_and_shows_what_it_is_stored_with(
    stored: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    for name in [
        name for name in os.environ if name == "XLA_FLAGS" or name == "JAX_NUM_CPU_DEVICES"
    ]:
        monkeypatch.delenv(name)  # it sets the number of devices itself
    before = shown(stored)
    assert len(before) == 7
    NotebookClient(stored, timeout=120, kernel_name="python3").execute()
    assert shown(stored) == before


def test_its_first_three_are_the_reference_examples_of_the_design(stored: Any) -> None:
    line = hm.Topology.build({"x": 8}, processes=4)
    grid = hm.Topology.build({"host": 4, "dev": 2}, processes=4)
    plans = [
        hm.plan(line, "x", global_shape=(16,), process=1),
        hm.plan(grid, "host", global_shape=(16,), process=1),
        hm.plan(grid, (), global_shape=(4,), process=1),
    ]
    for plan, output in zip(plans, shown(stored), strict=False):
        assert plan.local_shape() == (4,)
        assert output["image/svg+xml"].strip() == plan._repr_svg_().strip()
