"""What follows from what processes have: against a simulation that knows all of it beforehand."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hostmesh import Topology
from hostmesh._feed._ends import Agreed, Outcome, Post, decide
from hostmesh._feed._rows import Rows, rows_of

ROWS = Rows((0, 1, 2), ((0,), (1,), (2,)), count=3, chunk_rows=4)


def run(
    sources: list[list[int]], lasts: list[str], ends: str, windows: list[list[int]]
) -> tuple[list[Agreed], Outcome]:
    """Rounds in which process p has `windows[p][r]` more batches ready."""
    agreed: list[Agreed] = []
    seen = [0] * len(sources)
    for number in range(1000):
        posts: list[Post] = []
        for process, source in enumerate(sources):
            steps = windows[process]
            seen[process] = max(seen[process], len(agreed)) + steps[number % len(steps)]
            ready = source[len(agreed) : seen[process]]
            over = seen[process] > len(source)
            posts.append(Post(tuple(ready), then=lasts[process] if over else "more"))
            assert ready or over
        fed = [sum(batch.rows[p] for batch in agreed) for p in range(len(sources))]
        new, outcome = decide(posts, ROWS, ends, len(agreed), fed)
        agreed += new
        if outcome is not None:
            return agreed, outcome
        assert new, "a round without progress"
    raise AssertionError("it never ends")


batches = st.lists(st.integers(0, 4), max_size=6)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(batches, min_size=3, max_size=3),
    st.lists(st.sampled_from(["end", "end", "failed", "late"]), min_size=3, max_size=3),
    st.sampled_from(["drop", "pad", "error"]),
    st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=3, max_size=3),
)
def test_rounds_of_any_size_come_to_the_same(sources, lasts, ends, windows) -> None:
    agreed, outcome = run(sources, lasts, ends, windows)
    # All known at once, step by step.
    expected: list[tuple[int, ...]] = []
    for step in range(100):
        over = [len(source) <= step for source in sources]
        failed = [p for p in range(3) if over[p] and lasts[p] != "end"]
        own = tuple(0 if over[p] else sources[p][step] for p in range(3))
        short = [rows < 4 for rows in own]
        if ends == "drop" and any(s and p not in failed for p, s in enumerate(short)):
            # Whether the end or the failure is met first is told by rounds: both end it here.
            kinds = {"end"} | {lasts[p] for p in failed}
        elif failed:
            # Which is met first is told by rounds; uneven ends are a failure, too.
            kinds = {lasts[p] for p in failed} | ({"failed"} if ends == "error" else set())
        elif all(over):
            kinds = {"end"}
        elif ends == "error" and any(short):
            kinds = {"failed"}
        else:
            expected.append(own)
            continue
        break
    assert [batch.rows for batch in agreed] == expected
    assert outcome.kind in kinds
    assert outcome.batch == len(expected)


@given(
    st.lists(st.integers(0, 6), min_size=2, max_size=2), st.sampled_from(["block", "interleaved"])
)
def test_rows_of_chunks_are_those_of_the_mask(own: list[int], order) -> None:
    rows = rows_of(Topology.build({"x": 4}, 2, order), ("x",), (0, 1), 3)
    masks = np.zeros((4, 3), bool)
    for held, number in zip(rows.held, own, strict=True):
        masks[list(held)] = (np.arange(6) < number).reshape(2, 3)
    assert rows.valid(own) == tuple(masks.sum(1).tolist())
    assert rows.total == 12
    assert rows.capacities == (6, 6)


def test_rows_of_one_chunk_that_differ_are_an_error_however_it_ends() -> None:
    rows = Rows((0, 1), ((0,), (0,)), count=1, chunk_rows=8)
    for ends in ("drop", "pad", "error"):
        _, outcome = decide([Post((8,)), Post((6,))], rows, ends, 0, [0, 0])
        assert outcome is not None
        assert (outcome.kind, outcome.who) == ("failed", (0, 1))
        assert "hold the same chunk" in outcome.rule
