"""What facts and figures come to: each rule on made-up clusters, without processes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from hostmesh._doctor import _judge, _secrets, _show
from hostmesh._doctor._diagnosis import Diagnosis
from hostmesh._doctor._facts import Facts, from_plain
from hostmesh._doctor._finding import Finding, status_of
from hostmesh._doctor._host import Disk, Host
from hostmesh._doctor._measure import Figures, rounds

GIB = 2**30
HOST = Host(
    name="host0",
    resolves_to="10.0.0.1",
    machine="m0",
    system="Linux 6",
    cpus=16,
    usable_cpus=16,
    load=1.0,
    memory=64 * GIB,
    memory_free=32 * GIB,
    open_files=20000,
    open_files_hard=20000,
    shared_memory=Disk("/dev/shm", "tmpfs", 32 * GIB, 32 * GIB, True),
    gpus=0,
)
FACTS = Facts(
    process=0,
    processes=4,
    detector="SLURM",
    reason="SLURM_JOB_ID=1",
    coordinator="10.0.0.1:1234",
    versions={"python": "3.12.1", "jax": "0.12.0", "numpy": "2.5.0"},
    settings={"jax_enable_x64": "False"},
    environment={"SLURM_STEP_ID": "0", "SLURM_NTASKS": "4"},
    host=HOST,
    cache=None,
    platform="cpu",
    kinds=["cpu"],
    local_devices=2,
    memory_each=0,
    owners=[0, 0, 1, 1, 2, 2, 3, 3],
)


def cluster(hosts: int = 2, processes: int = 4, **common: Any) -> list[Facts]:
    """Processes in blocks over some hosts; `common` changes all of them."""
    made: list[Facts] = []
    for p in range(processes):
        at = p * hosts // processes
        host = dataclasses.replace(
            HOST, name=f"host{at}", resolves_to=f"10.0.0.{at + 1}", machine=f"m{at}"
        )
        facts = dataclasses.replace(FACTS, process=p, processes=processes, host=host)
        facts.environment["SLURM_NTASKS"] = "4"
        made.append(changed(facts, **common))
    return made


def changed(facts: Facts, **changes: Any) -> Facts:
    """Facts with some fields changed: of the host, of the process, or variables added to the last."""
    host = {k: v for k, v in changes.items() if k in Host.__dataclass_fields__}
    own = {k: v for k, v in changes.items() if k in Facts.__dataclass_fields__}
    for name in ("environment", "versions", "settings"):
        own[name] = {**getattr(facts, name), **own.get(name, {})}
    rest = {k: v for k, v in changes.items() if k not in host and k not in own}
    own["environment"].update(rest)
    return dataclasses.replace(facts, host=dataclasses.replace(facts.host, **host), **own)


def figures(processes: int = 4, **columns: list[Any]) -> list[Figures]:
    """Healthy figures, in which whole columns are changed."""
    links = [
        {
            str(q): 1.0
            for pairs in rounds(processes)
            for pair in pairs
            if p in pair
            for q in pair
            if q != p
        }
        for p in range(processes)
    ]
    usual: dict[str, list[Any]] = {
        "round_trip": [0.0005] * processes,
        "clock": [0.0] * processes,
        "links": links,
        "to_device": [5.0] * processes,
        "from_device": [5.0] * processes,
    }
    rows = {**usual, **columns}
    return [Figures(p, **{name: rows[name][p] for name in rows}) for p in range(processes)]


def test_nothing_is_wrong_with_a_healthy_cluster() -> None:
    assert _judge.judge(cluster(), figures(), {"data": 4, "model": 2}) == ()


def one(facts: list[Facts], at: int, **changes: Any) -> list[Facts]:
    """A cluster of which one process is changed."""
    return [changed(of, **changes) if of.process == at else of for of in facts]


FULL = Disk("/cache", "ext4", 10 * GIB, GIB // 2, True)
CLOSED = Disk("/cache", "nfs4", 10 * GIB, 5 * GIB, False)
SMALL = Disk("/dev/shm", "tmpfs", GIB // 16, GIB // 16, True)

CASES: dict[str, tuple[Callable[[], list[Facts]], str, tuple[int, ...], str, str]] = {
    "jax": (
        lambda: one(cluster(), 3, versions={"jax": "0.11.0"}),
        *("error", (3,), "the version of jax differs: processes 0-2: 0.12.0; process 3: 0.11.0"),
        "install jax 0.12.0 everywhere",
    ),
    "missing package": (
        lambda: one(cluster(), 1, versions={"libtpu": "1"}),
        *("error", (1,), "libtpu differs: processes 0, 2-3: not installed; process 1: 1"),
        "one environment",
    ),
    "numpy": (
        lambda: one(cluster(), 3, versions={"numpy": "2.4.0"}),
        *("warning", (3,), "the version of numpy differs", "install numpy 2.5.0"),
    ),
    "patch of python": (
        lambda: one(cluster(), 0, versions={"python": "3.12.9"}),
        *("warning", (0,), "the version of python differs", "with Python 3.12.1"),
    ),
    "minor of python": (
        lambda: one(cluster(), 0, versions={"python": "3.11.9"}),
        *("error", (0,), "the version of python differs", "with Python 3.12.1"),
    ),
    "setting": (
        lambda: one(cluster(), 2, settings={"jax_enable_x64": "True"}),
        *("error", (2,), "JAX's setting jax_enable_x64 differs: processes 0-1, 3: False"),
        "the variable JAX_ENABLE_X64",
    ),
    "flags": (
        lambda: one(cluster(XLA_FLAGS="--a=1 --b=2"), 2, XLA_FLAGS="--b=2  --c=3 --a=1"),
        *("error", (2,), "XLA_FLAGS differs, beside 2 that all have: processes 0-1, 3: without;"),
        "the same XLA_FLAGS",
    ),
    "environment": (
        lambda: one(cluster(), 2, BATCH="8"),
        *("warning", (2,), "BATCH differs: processes 0-1, 3: not set; process 2: '8'"),
        "set BATCH alike in all processes; or if that is meant, --ignore BATCH",
    ),
    "platform": (
        lambda: one(cluster(platform="tpu", kinds=["TPU v5"]), 1, platform="cpu"),
        *("error", (1,), "JAX's default backend differs", "JAX_PLATFORMS alike"),
    ),
    "devices": (
        lambda: one(cluster(), 3, local_devices=1),
        *("warning", (3,), "number of local devices differs: processes 0-2: 2; process 3: 1"),
        "as many devices",
    ),
    "kinds": (
        lambda: one(cluster(), 3, kinds=["slow"]),
        *("warning", (3,), "the kind of device differs: processes 0-2: cpu; process 3: slow"),
        "one kind of device",
    ),
    "memory of devices": (
        lambda: one(cluster(memory_each=80 * GIB), 3, memory_each=40 * GIB),
        *("warning", (3,), "processes 0-2: 80 GiB; process 3: 40 GiB", "MEM_FRACTION"),
    ),
    "hidden GPUs": (
        lambda: [
            changed(of, CUDA_VISIBLE_DEVICES=str(of.process % 2))
            for of in cluster(gpus=2, platform="gpu")
        ][:2],
        *(
            "warning",
            (0, 1),
            "hides the other of the 2 GPUs of host host0: process 0: 0; process 1",
        ),
        "leave out --gpus-per-task and --gpu-bind",
    ),
    "shared GPUs": (
        lambda: cluster(hosts=4, gpus=2, platform="gpu", gpu_numbers=["0", "1"], machine="m"),
        *("error", (0, 1, 2, 3), "host host0 use the same devices: GPU 0: processes 0-3; GPU 1:"),
        "local_device_ids=",
    ),
    "more tasks than GPUs": (
        lambda: cluster(hosts=1, gpus=2, platform="gpu"),
        *("error", (0, 1, 2, 3), "host host0 has 4 processes and 2 GPUs", "start 2 tasks a node"),
    ),
    "unused GPUs": (
        lambda: cluster(hosts=1, gpus=4),
        *("warning", (0, 1, 2, 3), "JAX runs on CPU, and host host0 has 4 GPUs", "jax[cuda13]"),
    ),
    "Kubernetes by mistake": (
        lambda: cluster(detector="Kubernetes", reason="KUBERNETES_SERVICE_HOST=10.1.0.1"),
        "warning",
        (0, 1, 2, 3),
        "Kubernetes was detected (KUBERNETES_SERVICE_HOST=10.1.0.1), though SLURM started",
        "have SLURM found: pass coordinator_address",
    ),
    "Kubernetes alone": (
        lambda: [
            dataclasses.replace(FACTS, processes=1, detector="Kubernetes", environment={"A": "1"})
        ],
        *("warning", (0,), "Kubernetes was detected", "hostmesh.initialize(num_processes=1)"),
    ),
    "one of several": (
        lambda: [changed(FACTS, processes=1, SLURM_NTASKS="8")],
        *("error", (0,), "more processes (SLURM_NTASKS: process 0: 8) than the cluster has, 1"),
        "srun",
    ),
    "found in two ways": (
        lambda: one(cluster(), 3, detector="arguments"),
        *("error", (3,), "in different ways: processes 0-2: SLURM; process 3: arguments"),
        "pass coordinator_address, num_processes and process_id",
    ),
    "name on loopback": (
        lambda: one(cluster(), 3, resolves_to="127.0.1.1"),
        *("error", (3,), "resolve to loopback, on 2 hosts: process 3: 'host1' is 127.0.1.1"),
        "in /etc/hosts there",
    ),
    "interface": (
        lambda: cluster(NCCL_SOCKET_IFNAME="=lo"),
        *("error", (0, 1, 2, 3), "NCCL_SOCKET_IFNAME names the loopback interface, on 2 hosts"),
        "ip -br addr",
    ),
    "coordinator on loopback": (
        lambda: cluster(coordinator="127.0.0.1:99"),
        *("warning", (0, 1, 2, 3), "the coordinator's address is loopback, on 2 hosts"),
        "process 0's host on the network",
    ),
    "files": (
        lambda: one(cluster(), 1, open_files=256),
        *("warning", (1,), "few open files are allowed, and 4 processes want 576 each: process 1:"),
        "ulimit -n 576",
    ),
    "files, hard limit": (
        lambda: one(cluster(), 1, open_files=256, open_files_hard=256),
        *("warning", (1,), "few open files are allowed", "raise the hard limit, 256"),
    ),
    "shared memory": (
        lambda: cluster(hosts=1, platform="gpu", gpus=4, shared_memory=SMALL),
        *("warning", (0, 1, 2, 3), "/dev/shm of host host0 has 64 MiB free of 64 MiB"),
        "--shm-size",
    ),
    "memory": (
        lambda: one(cluster(), 0, memory_free=GIB),
        *("warning", (0, 1), "host host0 has 1 GiB of its 64 GiB of memory left"),
        "end what else runs there",
    ),
    "cache, full": (
        lambda: one(cluster(), 0, cache=FULL),
        *("warning", (0,), "file system is nearly full: process 0: /cache (512 MiB)"),
        "JAX_COMPILATION_CACHE_DIR",
    ),
    "cache, closed": (
        lambda: one(cluster(), 0, cache=CLOSED),
        *("warning", (0,), "the compilation cache cannot be written: process 0: /cache"),
        "make the folder writable",
    ),
    "CPUs": (
        lambda: cluster(hosts=1, usable_cpus=2),
        *("note", (0, 1, 2, 3), "host host0 has 4 processes and 2 CPUs", "--cpus-per-task"),
    ),
    "load": (
        lambda: cluster(hosts=1, load=80.0),
        *("note", (0, 1, 2, 3), "host host0 is busy: load 80 on 16 CPUs", "look again"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_facts(case: str) -> None:
    facts, severity, who, what, remedy = CASES[case]
    found = [of for of in _judge.judge(facts(), []) if what in of.what]
    assert [(of.severity, of.who) for of in found] == [(severity, who)]
    assert remedy in found[0].remedy


def test_variables_of_launchers_and_ignored_ones_may_differ() -> None:
    facts = one(cluster(), 1, SLURM_PROCID="1", HOSTNAME="b", SLURM_CPU_BIND_LIST="0x1", RUN_A="1")
    assert _judge.judge(facts, [], ignore=["RUN_*"]) == ()


def test_many_variables_are_named_in_one_finding() -> None:
    facts = one(cluster(), 1, **{f"V{number:02}": "1" for number in range(20)})
    found = _judge.judge(facts, [])
    assert len(found) == 13
    assert found[-1].what.startswith("8 more variables of the environment differ: V12, V13")


SLOW: dict[str, tuple[list[Figures], tuple[int, ...], str, str]] = {
    "clock": (
        figures(clock=[0.0, 0.0, -30.0, 0.0]),
        *((2,), "clocks are off, by more than 0.5 s from most: process 2: 30 s behind", "NTP"),
    ),
    "clock of process 0": (
        figures(clock=[0.0, 30.0, 30.0, 30.0]),
        *((0,), "process 0: 30 s behind", "NTP"),
    ),
    "round trip": (
        figures(round_trip=[0.0005, 0.0005, 0.0005, 0.04]),
        *((3,), "slow: process 3 (host1): 40 ms; usual here: 0.5 ms", "and 10.0.0.1:1234 (ping"),
    ),
    "all round trips": (
        figures(round_trip=[0.2] * 4),
        *((0, 1, 2, 3), "a round trip to the coordinator is slow: process 0 (host0): 200 ms"),
        "look at the network",
    ),
    "links of one process": (
        figures(
            links=[{"1": 1, "3": 0.001}, {"0": 1, "2": 1}, {"1": 1, "3": 0.001}, {"2": 1, "0": 1}]
        ),
        (3,),
        "slow links: processes 2 and 3 (within a host): 0.001 GB/s; processes 0 and 3 (between"
        " hosts): 0.001 GB/s; the best here: 1 GB/s; all links of process 3 are slow",
        "ethtool",
    ),
    "one link": (
        figures(
            links=[{"1": 0.01, "3": 1}, {"0": 0.01, "2": 1}, {"1": 1, "3": 1}, {"2": 1, "0": 1}]
        ),
        *((0, 1), "slow links: processes 0 and 1 (within a host): 0.01 GB/s", "other traffic"),
    ),
    "copies": (
        figures(to_device=[9.0, 9.0, 0.1, 9.0]),
        *((2,), "copies from host to device are slow: process 2: 0.1 GB/s; usual here: 9 GB/s"),
        "numactl",
    ),
}


@pytest.mark.parametrize("case", SLOW)
def test_figures(case: str) -> None:
    measured, who, what, remedy = SLOW[case]
    found = [of for of in _judge.judge(cluster(), measured) if what in of.what]
    assert [(of.severity, of.who) for of in found] == [("warning", who)], _judge.judge(
        cluster(), measured
    )
    assert remedy in found[0].remedy


def test_figures_that_a_busy_machine_gives_are_no_findings() -> None:
    measured = figures(
        round_trip=[0.0002, 0.004, 0.009, 0.0003],
        clock=[0.0, 0.003, -0.01, 0.4],
        to_device=[9.0, 1.0, 1.2, 5.0],
    )
    assert _judge.judge(cluster(), measured) == ()


@pytest.mark.parametrize(
    ("axes", "owners", "severity", "what"),
    [
        ({"data": 8}, None, None, ""),
        ({"data": 3}, None, "error", "the mesh data=3 has 3 places, and there are 8 devices"),
        (
            {"data": 8},
            [0, 1, 2, 3] * 2,
            "warning",
            "refuse the mesh data=8: the devices of processes 0-3 do not form one rectangle",
        ),
        (
            {"model": 2, "data": 4},
            [0, 1, 2, 3, 0, 1, 2, 3],
            "note",
            "the last axis of the mesh, data=4, crosses hosts, and model does not",
        ),
    ],
)
def test_meshes(
    axes: dict[str, int], owners: list[int] | None, severity: str | None, what: str
) -> None:
    found = _judge.judge(cluster(), figures(), axes, owners)
    assert [of.severity for of in found] == ([severity] if severity else [])
    assert all(what in of.what for of in found)


SECRETS = {
    "WANDB_API_KEY": "0123",
    "GITHUB_TOKEN": "x",
    "DB_PASSWORD": "x",
    "AWS_SECRET_ACCESS_KEY": "x",
    "HF_TOKEN": "x",
    "PROXY": "http://user:pass@proxy:8080",
    "STORE": "https://store/x?sig=abcdef",
    "SOMETHING": "ghp_0123456789abcdefghij",
    "google_application_credentials": "/key.json",
}


def test_secrets_leave_no_process() -> None:
    told = _secrets.told({**SECRETS, "PATH": "/bin", "KEYBOARD": "de"}, b"salt")
    assert all(told[name].startswith("digest:") for name in SECRETS)
    assert (told["PATH"], told["KEYBOARD"]) == ("/bin", "de")
    assert not any(value in told.values() for value in SECRETS.values())
    assert told == _secrets.told({**SECRETS, "PATH": "/bin", "KEYBOARD": "de"}, b"salt")
    other = _secrets.told(SECRETS, b"other salt")
    assert all(other[name] != told[name] for name in SECRETS)  # of no use after the look


def test_secrets_are_in_no_output() -> None:
    facts = one(cluster(), 2, **_secrets.told({"A_TOKEN": "hush"}, b"salt"))
    found = _judge.judge(facts, figures())
    diagnosis = Diagnosis(found, tuple(facts), tuple(figures()), (), 1.0)
    assert "A_TOKEN differs: processes 0-1, 3: not set; process 2: (not shown)" in found[0].what
    for text in (str(diagnosis), diagnosis.to_json()):
        assert "hush" not in text
        assert "digest" not in text
        assert "A_TOKEN" in text


def test_facts_travel_as_json_also_from_another_version() -> None:
    facts = changed(FACTS, cache=FULL)
    told = json.loads(json.dumps(facts.plain()))
    told["of a later version"] = told["host"]["of a later version"] = 1
    assert from_plain(told) == facts


def test_the_table_fits_80_columns_and_is_ascii_when_asked() -> None:
    facts = one(cluster(), 3, versions={"jax": "0.11.0"}, XLA_FLAGS="--a " * 40)
    parts = (_judge.judge(facts, figures()), facts, figures(), (), 1.0)
    text = _show.text(*parts, ascii_only=True)
    assert max(map(len, text.splitlines())) <= 80
    assert text.isascii()
    assert "processes 0-2: 0.12.0" in text
    assert "4 processes, errors, in 1.0 s" in text
    assert max(map(len, _show.text(*parts, width=60).splitlines())) <= 60


def test_status() -> None:
    kinds: list[Any] = ["note", "warning", "error"]
    found = [Finding(kind, (), "", "") for kind in kinds]
    assert [status_of(found[:n]) for n in range(4)] == [0, 0, 1, 2]
