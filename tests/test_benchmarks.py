"""The scripts of benchmarks/ run. What they measure is for a quiet machine, not here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent.parent / "benchmarks"
FILES = sorted(path for path in HERE.glob("*.py") if not path.stem.startswith("_"))


def run(path: Path, *arguments: str) -> str:
    command = [sys.executable, str(path), *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        cwd=HERE.parent,
        env={**os.environ, "COLUMNS": "120"},  # where lines fold depends on the times themselves
    ).stdout


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_help_says_what_is_measured(path: Path):
    claim = " ".join(run(path, "--help").split())
    assert path.read_text().splitlines()[0].strip('"') in claim


def test_a_script_races_claims_of_its_own_and_prints_their_table():
    head, *rows, load = run(HERE / "sampler.py", "--rounds", "2").splitlines()
    assert "2 rounds" in head
    assert any(row.split()[:4] == ["all", "(NumPy)", "NumPy,", "all"] for row in rows)
    assert load.startswith("load of the machine")
