"""`hostmesh plan --reshard`: against compiled programs, the mover itself, and elements one by one."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from click.testing import CliRunner
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hostmesh as hm
import meshes
from hostmesh import _cli, _moves, _plan_reshard, _reshard, _transfers

SHAPE = (64, 128)
MESHES = {"flat": {"a": 8}, "4 x 2": {"a": 4, "b": 2}, "2 x 2 x 2": {"a": 2, "b": 2, "c": 2}}
Spec = tuple[tuple[str, ...], ...]


def specs_of(axes: list[str], rank: int) -> list[Spec]:
    """Every spec of a mesh: each axis cuts one dimension or none, in every order."""
    found: set[Spec] = set()
    for order in itertools.permutations(axes):
        for where in itertools.product(range(-1, rank), repeat=len(order)):
            found.add(
                tuple(
                    tuple(a for a, at in zip(order, where, strict=True) if at == i)
                    for i in range(rank)
                )
            )
    return sorted(found)


def some_pairs(name: str, count: int) -> list[tuple[Spec, Spec]]:
    pairs = list(itertools.permutations(specs_of(list(MESHES[name]), len(SHAPE)), 2))
    return random.Random(7).sample(pairs, min(count, len(pairs)))


def collectives_of(program: str, devices: int) -> dict[str, int]:
    """The bytes that each kind of collective brings to devices from others, as HLO's text has it."""
    sizes: dict[str, int] = {}
    found: Counter[str] = Counter()
    for line in program.splitlines():
        told = re.match(r"\s*(?:ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\((.*)", line)
        if not told:
            continue
        name, kind, operation, rest = told.groups()
        parts = [math.prod(map(int, s.split(","))) for s in re.findall(r"f32\[([\d,]+)\]", kind)]
        sizes[name] = 4 * sum(parts)
        if operation == "all-gather":
            given = sum(sizes[n] for n in re.findall(r"%([\w.-]+)", rest.partition(")")[0]))
            found[operation] += devices * (sizes[name] - given)
        elif operation == "all-to-all":
            assert len(parts) > 1, line
            found[operation] += devices * sizes[name] * (len(parts) - 1) // len(parts)
        elif operation == "collective-permute":
            pairs = re.findall(r"\{(\d+),(\d+)\}", rest.partition("source_target_pairs=")[2])
            found[operation] += sizes[name] * sum(a != b for a, b in pairs)
        else:
            assert not re.search("all-reduce|scatter|ragged|broadcast-start", operation), line
    return dict(found)


def predicted(topology: hm.Topology, old: Spec, new: Spec) -> dict[str, Any]:
    plans = (hm.plan(topology, spec, global_shape=SHAPE) for spec in (old, new))
    return _plan_reshard.facts(*plans, np.dtype(np.float32), None)


@pytest.mark.multiprocess(processes=1, devices=8, timeout=240)
@pytest.mark.parametrize(("name", "count"), [("flat", 4), ("4 x 2", 23), ("2 x 2 x 2", 23)])
def test_collectives_are_those_of_the_compiled_program(name: str, count: int) -> None:
    axes = MESHES[name]
    mesh = Mesh(np.array(jax.devices()).reshape(list(axes.values())), list(axes))
    kinds: Counter[str] = Counter()
    for old, new in some_pairs(name, count):
        source, target = (NamedSharding(mesh, P(*spec)) for spec in (old, new))
        value = jax.ShapeDtypeStruct(SHAPE, np.float32, sharding=source)
        compiled = jax.jit(lambda x: x, out_shardings=target).lower(value).compile()
        facts = predicted(hm.Topology.from_mesh(mesh), old, new)
        told: Counter[str] = Counter()
        for step in facts["xla"]["collectives"]:
            told[step["kind"]] += step["bytes"]
        assert dict(told) == collectives_of(compiled.as_text(), 8), f"{old} -> {new}"
        kinds.update(told.keys())
        least, moved = facts["bytes"]["least_moved"], facts["xla"]["bytes"]
        assert moved >= least
        if moved > least:
            words = " ".join(facts["xla"]["why"])
            assert f"least possible {least:,} bytes" in words
            assert f"{moved:,}: " in words
            assert len(facts["xla"]["why"]) > 1
    assert kinds  # some pairs at least move something


def test_the_pairs_take_every_kind_of_collective() -> None:
    kinds: Counter[tuple[str, ...]] = Counter()
    for name, axes in MESHES.items():
        for old, new in some_pairs(name, 30):
            found = predicted(hm.Topology.build(axes, 4), old, new)["xla"]["collectives"]
            kinds[tuple(step["kind"] for step in found)] += 1
    assert {(), ("all-gather",), ("all-to-all",), ("collective-permute",)} < set(kinds)
    assert ("all-to-all", "collective-permute") in kinds


@pytest.mark.parametrize("kind", sorted(meshes.KINDS))
def test_needs_are_those_of_elements_one_by_one(kind: str) -> None:
    found = meshes.KINDS[kind]
    topology, shape = hm.Topology(found.axes, found.owners), (8, 16)
    hosts = np.array([0, 0, 1, 1])
    specs = specs_of(list(found.names), 2)
    for old, new in random.Random(3).choices(list(itertools.product(specs, specs)), k=12):
        plans = [hm.plan(topology, spec, global_shape=shape) for spec in (old, new)]
        held, wanted = (np.zeros((8, *shape), bool) for _ in range(2))
        for made, mask in zip(plans, (held, wanted), strict=True):
            for process in topology.processes:
                for place in made.placements(process):
                    mask[(place.position, *place.global_index)] = True
        owners = topology.process_indices.ravel()
        counts = Counter[str]()
        for device in range(8):
            near = owners == owners[device]
            host = hosts[owners] == hosts[owners[device]]
            for at in zip(*np.nonzero(wanted[device]), strict=True):
                has = held[(slice(None), *at)]
                counts[
                    "own" if has[device] else
                    "process" if (has & near).any() else
                    "host" if (has & host).any() else "far"
                ] += 1  # fmt: skip
        needs = _transfers.needs(*plans, hosts.tolist())
        assert needs == _transfers.Needs(*(counts[k] for k in ("own", "process", "host", "far")))
        crossing = sum(
            int((wanted[owners == p].any(0) & ~held[owners == p].any(0)).sum()) for p in range(4)
        )
        assert _transfers.crossing(*plans) == crossing
        assert sum(_transfers.received(*plans, p).sum() for p in range(4)) == crossing


@pytest.mark.parametrize("kind", sorted(meshes.KINDS))
def test_who_sends_is_who_the_mover_says(kind: str) -> None:
    found = meshes.KINDS[kind]
    topology = hm.Topology(found.axes, found.owners)
    specs = specs_of(list(found.names), 2)
    for old_spec, new_spec in random.Random(5).choices(list(itertools.product(specs, specs)), k=30):
        old, new = (hm.plan(topology, s, global_shape=(16, 24)) for s in (old_spec, new_spec))
        for process in topology.processes:
            sent = Counter[int]()
            for chunk in new.chunks(process):
                for other, here, _ in _reshard._overlaps(new, chunk, old):
                    who = _reshard._sender(old, other, process)
                    assert who == process or who == _moves.sender(
                        old.holders(other), process, sum(other)
                    )
                    sent[who] += math.prod(cut.stop - cut.start for cut in here)
            del sent[process]
            received = _transfers.received(old, new, process)
            assert {p: n for p, n in enumerate(received.tolist()) if n} == dict(sent)


def told(*flags: str, **changes: str) -> Any:
    options = {"mesh": "data=4,model=2", "processes": "4", "shape": "64,128"} | changes
    words = [word for key, value in options.items() for word in (f"--{key}", value)]
    return CliRunner().invoke(_cli.main, ["plan", *words, *flags])


def test_what_is_said() -> None:
    result = told(reshard="data,None -> None,model", hosts="2")
    assert result.exit_code == 0, result.output
    for words in (
        "Reshard float32 (64, 128) from P('data') to P(None, 'model')",
        "Devices need 131,072 bytes in all",
        "on another host                   65,536",
        "from 1   8,192       0   8,192   8,192",
        "98,304 bytes between processes in all",
        "all-gather in groups of 4: 196,608 bytes",
        "least possible 98,304 bytes; XLA's all-gather moves 196,608:",
        "involuntary full rematerialization",
    ):
        assert words in result.output
    assert max(map(len, result.output.splitlines())) <= 80
    assert "Processes send each other nothing" in told(reshard="data -> data,model").output


def test_numbers_for_programs() -> None:
    facts = json.loads(told("--json", reshard="data -> None,data", dtype="bf16").output)
    assert facts["bytes"]["least_moved"] == facts["xla"]["bytes"] == 2 * 8 * 16 * 128 * 3 // 4
    assert [s["kind"] for s in facts["xla"]["collectives"]] == ["all-to-all"]
    assert facts["xla"]["why"] == ["the least possible"]
    assert sum(facts["received_from"]["0"]) * 4 == facts["sent_between_processes"]


def test_a_mesh_of_thousands_is_abridged() -> None:
    result = told(
        mesh="data=1024,model=8",
        processes="1024",
        shape="8192,8192",
        hosts="256",
        reshard="data->None,(data,model)",
    )
    assert result.exit_code == 0, result.output
    assert "from others" in result.output
    assert re.search(r"and 1,0\d\d more columns", result.output)
    assert len(result.output.splitlines()) < 40
    assert max(map(len, result.output.splitlines())) <= 80


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"reshard": "data"}, "one -> between"),
        ({"reshard": "data -> datum"}, "'datum' is no axis of the mesh"),
        ({"reshard": "data -> model", "hosts": "5"}, "5 hosts for 4 processes"),
    ],
)
def test_what_cannot_be_is_refused_in_four_parts(changes: dict[str, str], words: str) -> None:
    result = told(**changes)
    assert result.exit_code == 2
    assert words in result.output
    assert all(f"\n  {part}:" in result.output for part in ("given", "rule", "do"))


def test_the_documented_reshard_is_what_is_said() -> None:
    page = Path(__file__).resolve().parent.parent / "docs" / "pictures.md"
    blocks = page.read_text("utf-8").split("```console\n")[1:]
    block = next(b for b in blocks if "--reshard" in b.splitlines()[0]).split("\n```")[0]
    command, _, shown = block.partition("\n")
    words = re.findall(r"'[^']*'|\S+", command)[2:]
    result = CliRunner().invoke(_cli.main, [word.strip("'") for word in words])
    assert result.output.rstrip() == shown
