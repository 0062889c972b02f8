"""Timelines of real processes read together: who made too few calls, who alone read data."""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from hostmesh._cli import main
from hostmesh._watch import _act, _files, _merge

pytestmark = [
    pytest.mark.private_names,
    pytest.mark.multiprocess(processes=4, devices=1),
]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_act, "say", lambda text: None)
    monkeypatch.setenv(_files.FOLDER, str(tmp_path))


def _site(mark: str) -> str:
    text = Path(__file__).read_text().splitlines()
    line = 1 + next(n for n, line in enumerate(text) if line.endswith(f"# {mark}"))
    return f"tests/test_timelines.py:{line}"


def _timelines(folder: Path) -> list[str]:
    return sorted(map(str, folder.glob("*-process*/timeline.json")))


def _barriers(me: int) -> None:
    import hostmesh as hm

    for number in range(3):
        if (me, number) == (2, 2):
            time.sleep(60)  # instead of the call
        hm.barrier(f"number {number}", timeout=60)  # the call


def test_who_made_fewer_calls(tmp_path: Path) -> None:
    import jax

    import hostmesh as hm

    me = jax.process_index()
    with (
        hm.channel("out of step"),
        pytest.raises(hm.StragglerError) as caught,
        hm.Watchdog(timeout=1.0, action="raise"),
    ):
        _barriers(me)
    # The error stands alone: what was being waited for when it came is no cause of it.
    shown = "".join(traceback.format_exception(caught.value))
    assert shown.count("Traceback") == 1, shown
    assert hm.explain(caught.value) is None
    hm.barrier("all have written", timeout=20)
    if me == 0:
        files = _timelines(tmp_path)
        assert len({json.loads(Path(file).read_text())["run"] for file in files}) == 1
        told = _merge.merge(files)
        assert told.sentences == [
            "process 2 made 2 agreed calls, processes 0-1, 3 are in their 3rd: barrier 'number 2'"
            f" at {_site('the call')}",
            f"processes 0-1, 3: waited in barrier 'number 2' at {_site('the call')},"
            " then StragglerError",
            f"process 2: last agreed call: barrier 'number 1' at {_site('the call')},"
            " then StragglerError",
        ]
        by_hand = CliRunner().invoke(main, ["doctor", *files])
        assert (by_hand.exit_code, by_hand.output.splitlines()) == (1, told.sentences)


def test_who_alone_reads(tmp_path: Path) -> None:
    import jax
    from jax.sharding import Mesh, PartitionSpec

    import hostmesh as hm

    me = jax.process_index()
    ours, theirs = os.pipe()

    def source() -> Iterator[dict[str, Any]]:
        for number in range(9):
            if (me, number) == (1, 3):
                os.read(ours, 1)
            yield {"x": np.ones((2, 2), np.float32)}

    feeder = hm.Feeder(source(), Mesh(np.array(jax.devices()), "data"), PartitionSpec("data"))
    with pytest.raises(hm.StragglerError), hm.Watchdog(timeout=1.0, action="raise"):
        for _ in feeder:  # the batch
            pass
    hm.barrier("all have written", timeout=20)
    os.write(theirs, b"x")
    feeder.close()
    if me == 0:
        assert _merge.merge(_timelines(tmp_path)).sentences == [
            "process 1 alone waits for its own data in Feeder, batch 3, and processes 0, 2-3 for it",
            f"processes 0, 2-3: waited for others in Feeder, batch 3 at {_site('the batch')},"
            " then StragglerError",
            f"process 1: waited for its own data in Feeder, batch 3 at {_site('the batch')},"
            " then StragglerError",
        ]
