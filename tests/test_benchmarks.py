"""The benchmarks run and print their tables. What they measure is for a quiet machine, not here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent.parent / "benchmarks"
FILES = sorted(path for path in HERE.glob("*.py") if not path.stem.startswith("_"))


@pytest.fixture
def race(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(HERE))
    import _race

    yield _race
    del sys.modules["_race"]


def run(path: Path, *arguments: str) -> str:
    command = [sys.executable, str(path), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=120, cwd=HERE.parent
    ).stdout


def test_there_is_a_benchmark_for_each_claim():
    assert {
        "agreement_simulation",
        "between_allgather_large",
        "between_allgather_leaves",
        "between_assert_equal",
        "between_barrier",
        "between_broadcast_large",
        "between_broadcast_leaves",
        "between_replicate",
        "between_scalar",
        "cold_shapes",
        "drop_in",
        "feeder_overlap",
        "feeder_soak",
        "import_cost",
        "inference_batch",
        "large_leaf",
        "leaves_in",
        "leaves_out",
        "peak_collectives",
        "peak_memory",
        "planning",
        "sampler",
        "save_async",
        "save_model",
        "small_leaf",
        "soak_collectives",
        "soak_save",
        "storage_load",
        "storage_load_large",
        "storage_remote",
        "threads",
    } <= {path.stem for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_help_says_what_is_claimed(path: Path):
    claim = " ".join(run(path, "--help").split())
    assert path.read_text().splitlines()[0].strip('"') in claim


def test_a_race_runs_in_a_process_group_and_prints_peer_ours_ratio_and_bound():
    head, columns, *rows, load = run(HERE / "small_leaf.py", "--rounds", "2").splitlines()
    assert "2 rounds" in head
    assert columns.split()[:2] == ["peer", "peer"]
    assert len(rows) == 2
    assert all("JAX" in row and ">= 1x" in row for row in rows)
    assert load.startswith("load of the machine")


def test_the_table_says_which_bounds_hold(race):
    rows = [
        race.Row("a", "JAX", [0.004, 0.008, 0.005], [0.001, 0.002, 0.001], bound=5),
        race.Row("b", "JAX", [0.004, 0.008, 0.005], [0.001, 0.002, 0.001], bound=6),
        race.Row("c", "JAX", [2**26], [0], unit="MiB"),
    ]
    a, b, c = race.table(rows).splitlines()[1:]
    assert a.split() == ["a", "JAX", "5", "ms", "1", "ms", "5.00x", "4.00x", ">=", "5x", "holds"]
    assert b.split()[-1] == "MISSED"
    assert c.split() == ["c", "JAX", "64", "MiB", "0", "MiB", "infx", "infx"]
