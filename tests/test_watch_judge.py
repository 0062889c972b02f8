"""Who is behind, by the beats alone; the report's words; timelines read together. No processes."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from hostmesh._cli import main
from hostmesh._watch import _lead, _merge, _missed, _report, _stacks, _table
from hostmesh._watch._beat import Beat
from hostmesh._watch._judge import Judgement, Limits, Seen, judge
from hostmesh._watch._lead import Leader, Left

LIMITS = Limits(timeout=10, compiling=60, silence=3, lost=85)


def seen(process: int, *, quiet: float = 0.0, age: float = 11.0, **given: Any) -> Seen:
    given.setdefault("marks", 5)
    given.setdefault("step", 7)
    given.setdefault("place", "train.py:41")
    return Seen(Beat(process, 9, f"node{process}", 100 + process, age=age, **given), quiet)


def waits(process: int, what: str = "barrier 'b'", **given: Any) -> Seen:
    return seen(process, phase="agrees", what=what, site="train.py:44", **given)


def behind(*every: Seen) -> tuple[int, ...]:
    return judge(every, LIMITS).behind


def test_nobody_is_behind_as_long_as_somebody_moves() -> None:
    assert behind(*(seen(p, age=9.0) for p in range(3))) == ()
    # Slow but moving: the others wait for longer than the time-out, and it makes steps.
    assert behind(waits(0), waits(1), seen(2, age=2.0)) == ()
    # Not armed: before the first mark, with nobody waiting.
    assert behind(*(seen(p, marks=0, age=500.0) for p in range(2))) == ()
    assert behind(seen(0, marks=0), waits(1)) == (0,)


def test_who_is_stuck_is_behind_and_who_waits_is_not() -> None:
    for cpu in (0.0, 1.0):  # a sleep, a loop
        assert behind(waits(0), seen(1, cpu=cpu, place="train.py:9"), waits(2)) == (1,)
    assert behind(waits(0), waits(1), seen(2, phase="feeds")) == (2,)


def test_a_compiler_has_its_own_limit() -> None:
    assert behind(waits(0), seen(1, age=59.0, phase="compiles")) == ()
    assert judge([waits(0), seen(1, age=59.0, phase="compiles")], LIMITS).states[1] == "compiles"
    assert behind(waits(0), seen(1, age=61.0, phase="compiles")) == (1,)


def test_a_compiler_that_holds_the_gil_is_no_silence() -> None:
    held = dataclasses.replace(seen(1, quiet=20.0, age=1.0), compiles=True)
    assert behind(waits(0), held) == ()
    assert behind(waits(0), dataclasses.replace(held, compiles=False)) == (1,)
    assert behind(waits(0), dataclasses.replace(held, quiet=61.0)) == (1,)
    # It came out of the compiler after its last beat, and then held the GIL for a moment.
    assert behind(waits(0), seen(1, phase="compiles", age=30.0, quiet=4.0)) == ()
    assert behind(waits(0), seen(1, phase="compiles", age=30.0, quiet=11.0)) == (1,)


def held_beat(number: int, age: float) -> bytes:
    return Beat(1, number, "node1", 101, marks=5, step=7, age=age).packed()


def told(leader: Leader, stack: _stacks.Stack, kernel: str = "runs") -> str:
    """What is printed when all that is waited for has come in."""
    leader.look()
    if leader.is_collecting():
        left = {0: Left("", (), ()), 1: Left("", stack, ())}
        assert leader.report(left, {1: kernel})
    said, leader.said = leader.said, []
    return "".join(said)


def leader_that_waits() -> Leader:
    leader = Leader(0, LIMITS, "report")
    waiting = Beat(0, 9, "node0", 100, marks=5, step=7, age=21.0, phase="agrees")
    leader.beats.take({"0": waiting.packed(), "1": held_beat(9, 1.0)})
    leader.beats.age(1, 20.0)
    return leader


def test_the_leader_reads_from_a_dumped_stack_who_compiles() -> None:
    lowers = (_stacks.Frame("lib/jax/_src/interpreters/mlir.py", 1, "lower", ""),)
    reads = (_stacks.Frame("train.py", 9, "read", "os.read(pipe)"),)
    leader = leader_that_waits()
    assert told(leader, lowers) == ""
    assert told(leader, lowers) == ""
    assert not leader.is_collecting()
    leader.beats.take({"1": held_beat(10, 1.0)})  # it had come out of the compiler since
    leader.beats.age(1, 20.0)
    assert "process 1" in told(leader, reads)
    assert "process 1" in told(leader_that_waits(), lowers, "stopped")


def test_nothing_is_said_of_one_that_went_on_while_stacks_came_in() -> None:
    leader = leader_that_waits()
    leader.look()
    assert leader.is_collecting()
    leader.beats.take({"1": held_beat(10, 0.1)})  # it was suspended with the leader
    assert leader.report({0: Left("", (), ()), 1: Left("", (), ())}, {})
    assert not leader.said
    assert not leader.behind()


def test_threads_in_a_compiled_program_look_stuck_and_are_not_blamed() -> None:
    waiting = [seen(p, place="train.py:50") for p in range(3)]
    assert behind(*waiting, seen(3, place="train.py:9")) == (3,)
    assert behind(*waiting, waits(3)) == (3,)
    # The one that hangs made progress last: the others are not blamed in its place before.
    assert behind(*waiting, seen(3, place="train.py:9", age=9.9)) == ()
    # Of two, the one at the earlier step, or the one that is busy.
    assert behind(seen(0, step=7), seen(1, step=6)) == (1,)
    assert behind(seen(0, place="a.py:1"), seen(1, place="b.py:1", cpu=1.0)) == (1,)
    # All in one line: all of them.
    assert behind(*waiting) == (0, 1, 2)


def test_silence() -> None:
    stuck = [seen(p, place="train.py:50") for p in range(2)]
    assert behind(*stuck, seen(2, age=1.0, quiet=11.0)) == (2,)
    # It may have gone on after its last beat, from a pause of which that told.
    assert behind(*stuck, seen(2, age=7.0, quiet=5.0)) != (2,)
    assert behind(waits(0), seen(1, age=1.0, quiet=8.0)) == ()
    judged = judge([waits(0, age=1.0), seen(1, age=1.0, quiet=12.0)], LIMITS)
    assert (judged.behind, judged.states[1], judged.fatal) == ((1,), "silent", True)
    # With a long time-out it is told before JAX ends all, but nothing is done yet.
    long = dataclasses.replace(LIMITS, timeout=300.0)
    judged = judge([waits(0, age=1.0), seen(1, age=1.0, quiet=86.0)], long)
    assert (judged.behind, judged.fatal) == ((1,), False)


def test_ends() -> None:
    assert behind(waits(0), seen(1, phase="ended")) == (1,)
    assert behind(seen(0, phase="ended"), seen(1, phase="ended")) == ()
    assert behind(seen(0, phase="left", quiet=500.0), seen(1, age=1.0)) == ()


def test_who_ended_early_is_behind_those_in_a_compiled_program() -> None:
    def ended(process: int, step: int = 18, **options: Any) -> Seen:
        return seen(process, phase="ended", step=step, **options)

    def idle(process: int, **options: Any) -> Seen:
        return seen(process, **{"step": 19, "cpu": 0.0} | options)

    assert behind(idle(0), ended(1), idle(2)) == (1,)
    assert behind(idle(0), ended(1), idle(2), ended(3)) == (1, 3)
    # No step is marked.
    assert behind(idle(0, marks=0), ended(1, marks=0), idle(2, marks=0)) == (1,)
    assert behind(idle(0), ended(1)) == (1,)
    # Not so: there is somebody else to be waited for, or nothing says that they wait.
    busy = seen(3, step=19, cpu=1.0, place="train.py:9")
    assert behind(idle(0), ended(1), idle(2), busy) == (3,)
    assert behind(idle(0), ended(1, age=2.0), idle(2)) != (1,)
    assert behind(idle(0, step=18), ended(1)) == (0,)  # at the same step, as in a last upload
    assert behind(idle(0, marks=0, age=2.0), ended(1), idle(2, marks=0, age=2.0)) == ()


def test_all_wait() -> None:
    assert behind(waits(0), waits(1), waits(2, "allgather")) == (2,)
    assert behind(waits(0), waits(1), waits(2, calls=3)) == (2,)
    assert behind(waits(0), waits(1)) == (0, 1)


def _report_of(every: list[Seen], **found: Any) -> str:
    judged = judge(every, LIMITS)
    return _report.report(every, judged, _report.Found(**found), 10.0, "all exit")


def test_the_report_fits_80_columns_behind_a_number_and_names_all() -> None:
    frames = (_stacks.Frame("/home/me/data.py", 88, "read", "return file.read()"),)
    others = (_stacks.Frame("/home/me/train.py", 44, "step", "hm.barrier('b')"),)
    every = [
        waits(0),
        waits(1),
        seen(
            2,
            age=12.5,
            since=12.5,
            place="me/data.py:88",
            line="return file.read()",
            load=7.5,
            cores=8,
            rss=3 * 2**30,
            free=2**30,
            memory=64 * 2**30,
            queue=0,
            folder="/tmp/x",
            notes=("thread 'reader' ended with ValueError: bad",),
        ),
    ]
    text = _report_of(every, stacks={0: others, 1: others, 2: frames})
    assert all(len(line) <= 75 and line.startswith("hostmesh: ") for line in text.splitlines()), (
        text
    )
    joined = " ".join(text.replace("hostmesh: ", "").split())
    for part in (
        "watchdog: process 2 of 3 has made no progress for 12.5 s (time-out 10 s)",
        "process 2: step 7, at me/data.py:88 for 12.5 s",
        "88 | return file.read()",
        "host node2, pid 102; main thread idle (0% of a CPU); load 7.5 on 8 CPUs; memory 3.00 GiB,"
        " 1.0 of 64.0 GiB free there; 0 batches ready",
        "thread 'reader' ended with ValueError: bad",
        "processes 0-1: step 7, wait in barrier 'b' at train.py:44, 0.0 s now, for process 2",
        "processes 0-1: me/train.py:44 in step hm.barrier('b')",
        "process 2: me/data.py:88 in read return file.read()",
        "/tmp/x/stacks.txt",
    ):
        assert part in joined, f"{part!r} is not in {text}"


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        ("stopped", "is stopped (SIGSTOP, or a debugger), and has not been heard of for 12.0 s"),
        ("gone", "is gone: killed, crashed, or ended without a word"),
        ("runs", "does not let its threads run: a call in C holds the GIL"),
        ("", "process 1 of 2 has not been heard of for 12.0 s"),
    ],
)
def test_what_the_kernel_knows_of_a_silent_process(kernel: str, words: str) -> None:
    every = [waits(0, age=1.0), seen(1, age=1.0, quiet=12.0)]
    text = _report_of(every, kernel={1: kernel} if kernel else {})
    assert words in " ".join(text.replace("hostmesh: ", "").split())
    assert "last seen: step 7, at train.py:41" in text


def test_a_frame_at_an_instruction_without_a_line_is_where_its_function_begins() -> None:
    code = SimpleNamespace(co_filename="train.py", co_firstlineno=7, co_name="step")
    frame: Any = SimpleNamespace(f_code=code, f_lineno=None, f_back=None)
    assert [each.place for each in _stacks.stack_of(frame)] == ["train.py:7"]


def test_what_faulthandler_wrote_is_read() -> None:
    text = (
        "Timeout (0:00:02)!\nThread 0x00007f01 (most recent call first):\n"
        '  File "/usr/lib/threading.py", line 5 in wait\n\n'
        "Thread 0x00007f02 (most recent call first):\n"
        '  File "/home/me/train.py", line 9 in work\n  File "/home/me/train.py", line 12 in main\n'
    )
    assert [frame.line for frame in _stacks.read_dump(text, 0x7F02)] == [9, 12]
    assert [frame.line for frame in _stacks.read_dump(text + text, 0x7F01)] == [5]


def _timeline(process: int, *calls: str, step: int = 4) -> dict[str, Any]:
    kinds = [("step", str(step), "")] + [("agree", call, f"t.py:{ord(call[-1])}") for call in calls]
    numbers = iter(range(40, 90))
    events = [
        {"kind": k, "what": w, "site": s, "channel": "MainThread", "number": next(numbers)}
        for k, w, s in kinds
    ]
    return {"process": process, "processes": 4, "events": events}


def test_merging_names_the_first_divergence(tmp_path: Path) -> None:
    files: list[Path] = []
    for process in range(3):
        calls = ("a", "c", "d") if process == 2 else ("a", "b", "c", "d")
        files.append(tmp_path / f"{process}.json")
        files[-1].write_text(json.dumps(_timeline(process, *calls)))
    merged = _merge.merge(files)
    assert merged.sentences == [
        "process 2 skipped b at t.py:98, the 42nd call of MainThread: it went on to c at t.py:99",
        "processes 0-2: step 4, waits in d at t.py:100",
        "no timeline of process 3",
    ]
    assert merged.parted
    alike = _merge.merge(files[:2])
    assert "the same" in alike.sentences[0]
    assert not alike.parted
    by_hand = CliRunner().invoke(main, ["doctor", *map(str, files)])
    assert (by_hand.exit_code, by_hand.output.splitlines()) == (1, merged.sentences)
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(ValueError, match=r"other\.json is no timeline"):
        _merge.merge([tmp_path / "other.json"])


def test_merging_reads_the_newest_run_alone(tmp_path: Path) -> None:
    files: list[Path] = []
    for run, at, calls in (("2026-01-02, a:1", 9.0, "ab"), ("2026-01-01, b:2", 5.0, "ba")):
        for process in range(2):
            timeline = _timeline(process, *(calls if process else "ab")) | {"run": run}
            timeline["processes"] = 2
            for event in timeline["events"]:
                event["at"] = at
            files.append(tmp_path / f"{at}-{process}.json")
            files[-1].write_text(json.dumps(timeline))
    assert _merge.merge(files).sentences == [
        "the newest of 2 runs, which began 2026-01-02, a:1:",
        "the order of collectives is the same, as far as the timelines go",
        "processes 0-1: step 4, waits in b at t.py:98",
    ]
    # Of a process that wrote twice in a run, what it wrote last.
    (tmp_path / "later.json").write_text(
        files[1].read_text().replace('"b"', '"c"').replace("9.0", "9.5")
    )
    assert _merge.merge([*files[:2], tmp_path / "later.json"]).parted
    assert _merge.merge([tmp_path / "later.json", *files[:2]]).parted


def test_slow_once_or_always() -> None:
    def beat(process: int, own: float, mean: float) -> Beat:
        return Beat(
            process, 9, "a", 1, step=5, took=2.0, waited=2.0 - own, steps=10, busy=mean * 10
        )

    usual = [beat(0, 1.0, 1.0), beat(1, 1.1, 1.0)]
    assert "nobody is slow" in _table.found([*usual, beat(2, 1.1, 1.0)]).line()
    few = _table.found(usual, processes=5)
    assert few.missing == (2, 3, 4)
    assert few.line().endswith("; no watchdog runs on processes 2-4")
    once = _table.found([*usual, beat(2, 1.9, 1.0)])
    always = _table.found([*usual, beat(2, 1.9, 1.8)])
    assert (once.slowest, once.chronic, always.chronic) == (2, False, True)
    assert "process 2 on a is slow, this once" in once.line()
    assert max(map(len, str(always).splitlines()[:-1])) <= 80


def test_a_judgement_of_nobody() -> None:
    assert judge([], LIMITS) == Judgement({})


def test_what_follows_from_the_action_is_no_new_incident() -> None:
    leader, numbers = _lead.Leader(0, LIMITS, "raise"), itertools.count(10)

    def look(*every: Seen) -> _lead.Summary:
        leader.beats.take({str(one.beat.process): one.beat.packed() for one in every})
        for one in every:
            leader.beats.age(one.beat.process, one.quiet)
        leader.look()
        if leader.is_collecting():
            lefts = {p: _lead.Left("", (), ()) for p in range(3)}
            assert leader.report(lefts, {})
        return leader.summary(every[0].beat)

    first = look(waits(0), waits(1), seen(2))
    assert first.act
    assert "process 2 of 3 has made no progress" in first.text
    assert len(leader.said) == 1

    # Process 2 took the error and ends; process 1 did not, and its watchdog has ended it.
    def after(process: int, phase: str, **given: Any) -> Seen:
        one = seen(process, phase=phase, **given)
        return dataclasses.replace(one, beat=dataclasses.replace(one.beat, number=next(numbers)))

    then = look(waits(0, quiet=20.0), waits(1, quiet=20.0), after(2, "ended", age=0.0))
    assert (then.incident, then.act) == (first.incident, True)
    assert len(leader.said) == 1
    # One that took it and goes on in its program is told of, and may be behind again.
    gone_on = look(after(0, "runs", age=0.0), after(1, "runs", age=0.0), after(2, "runs", age=0.0))
    assert not gone_on.incident
    assert "process 2 goes on" in leader.said[-1]


def test_the_call_that_one_has_not_made_is_named() -> None:
    every = [waits(0), waits(1, age=9.0), seen(2, place="train.py:73")]  # one came a moment later
    calls = [_merge.Call("MainThread", n, "allgather", "train.py:61") for n in (1, 2, 3)]
    judged = judge(every, LIMITS)
    told = _missed.missed(every, judged, {0: calls, 1: calls, 2: calls[:2]})
    assert told == (
        "process 2 has not made agreed call 3, allgather at train.py:61 (its last: 2),"
        " in which processes 0-1 wait: skipped, or it did not come there from train.py:73"
    )
    text = " ".join(_report_of(every, order=told).replace("hostmesh: ", "").split())
    assert "made no progress for 11.0 s, and is not where the others wait (time-out 10 s)" in text
    assert told in text
    # All have made the same calls; or what the others made is not one call.
    assert not _missed.missed(every, judged, {0: calls, 1: calls, 2: calls})
    assert not _missed.missed(every, judged, {0: calls, 1: calls[:2], 2: calls[:1]})
