"""Joining a cluster, and ending together: in real JAX processes, started by the launcher."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from hostmesh import ClusterError, _initialize, _jax, _run
from hostmesh._cluster import free_port, member_from_environment, members

PREAMBLE = """
import os, sys, time
import jax, numpy as np
import hostmesh
from hostmesh import ClusterError
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

def begin_to_meet():
    mesh = Mesh(np.array(jax.devices()), ("x",))
    count = len(jax.devices())
    ones = jax.make_array_from_callback(
        (count,), NamedSharding(mesh, P("x")), lambda _: np.ones(1, np.float32)
    )
    return jax.jit(lambda a: a.sum(), out_shardings=NamedSharding(mesh, P()))(ones)

def meet():
    return float(begin_to_meet())
"""

LAUNCHERS = (
    *_initialize._SLURM,
    *_initialize._SIGNS,
    *("HOSTMESH_COORDINATOR", "OMPI_MCA_orte_hnp_uri", "KUBERNETES_SERVICE_HOST"),
)


def cluster(tmp_path: Path, program: str, devices=(1, 1), environment=None):
    (tmp_path / "program.py").write_text(PREAMBLE + textwrap.dedent(program))
    output = io.BytesIO()
    command = [sys.executable, str(tmp_path / "program.py")]
    result = _run.run(command, devices, output=output, timeout=120, environment=environment)
    # JAX's own lines are torn where several threads write them, and cannot all be told then.
    lines = output.getvalue().decode().splitlines()
    return result, "\n".join(x for x in lines if not re.search(r"peer ranks|\[Gloo\]|\] \d*$", x))


def alone(tmp_path: Path, program: str) -> str:
    """The error output of a program without a launcher."""
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    environment = {k: v for k, v in os.environ.items() if k not in LAUNCHERS}
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={**environment, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stderr


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No launcher's variables, and `initialize` not yet called."""
    for variable in LAUNCHERS:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(_initialize, "_cluster", None)
    monkeypatch.setattr(_initialize, "_device_ids", None)
    return monkeypatch


def test_a_cluster_of_uneven_processes(tmp_path: Path):
    program = """
    cluster = hostmesh.initialize()
    assert cluster is hostmesh.initialize()
    assert cluster is hostmesh.initialize(num_processes=3, process_id=cluster.process)
    assert cluster.detector == "hostmesh run"
    assert cluster.reason == "HOSTMESH_COORDINATOR=" + cluster.coordinator
    assert (cluster.process, cluster.processes) == (jax.process_index(), jax.process_count())
    assert jax.local_device_count() == [2, 1, 1][cluster.process]
    assert meet() == 4.0
    try:
        hostmesh.initialize(num_processes=5)
    except ClusterError as error:
        print(str(error).replace("\\n", " | "))
    # Process 0, which has the coordinator, is done long before the others.
    time.sleep(2 * cluster.process)
    """
    result, output = cluster(tmp_path, program, devices=(2, 1, 1))
    assert result.status == 0, output
    assert sorted(output.splitlines()) == [
        f"[{p}] hostmesh.initialize() on process {p} of 3, again |   given: num_processes=5 | "
        "  rule:  a process joins one cluster once: it has num_processes=3 | "
        "  do:    call it without arguments, or in a new process"
        for p in range(3)
    ]


@pytest.mark.private_names
@pytest.mark.parametrize("guilty", [0, 2])
def test_who_raises_is_named_by_the_others_and_nobody_hangs(
    tmp_path: Path, guilty: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(_run, "GRACE", 3.0)
    program = f"""
    process = hostmesh.initialize().process
    meet()
    if process == 1:  # is slow to say so: process 0, and its coordinator, stay for it
        say = hostmesh._exit._say
        hostmesh._exit._say = lambda text: (time.sleep(2.5), say(text))
    if process == {guilty}:
        raise ValueError("bad luck")
    meet()  # which it never reaches
    """
    result, output = cluster(tmp_path, program, devices=(1, 1, 1))
    assert result.first_failure == result.exits[guilty]
    assert result.status == 1
    assert result.first_failure.last_lines[-1] == "ValueError: bad luck"
    text = (
        f"hostmesh: process {guilty} of 3 was the first to report a failure: ValueError: bad luck"
    )
    says = [line for line in output.splitlines() if text in line]
    assert sorted(says) == [f"[{p}] {text}" for p in range(3) if p != guilty]


@pytest.mark.private_names
def test_who_raises_does_not_wait_for_its_own_collective(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """JAX's client would, as it is destroyed: for ever, where another process never comes."""
    monkeypatch.setattr(_run, "GRACE", 3.0)
    program = """
    process = hostmesh.initialize().process
    meet()
    if process == 1:
        time.sleep(60)  # and its end would end the wait
    total = begin_to_meet()
    raise ValueError("bad luck")
    """
    result, _ = cluster(tmp_path, program, devices=(2, 2))  # with one, dispatch itself waits
    assert result.first_failure == result.exits[0]
    assert result.exits[0].status == 1
    assert result.exits[1].status > 128, "process 1 was not waited for"


@pytest.mark.private_names
def test_an_error_that_all_share_is_shown_once(tmp_path: Path):
    program = """
    process = hostmesh.initialize().process
    meet()
    hostmesh.barrier("a" if process < 2 else "b", timeout=20)
    """
    result, output = cluster(tmp_path, program, devices=(1, 1, 1))
    assert result.status == 1
    # Two of them go the same way, at the same lines; the third one's traceback is another.
    assert output.count("Traceback (most recent call last):") == 2, output
    # What `run` repeats of the one that it blames may have the line again.
    assert re.search(r"hostmesh: process [01] of 3 failed in the same way, at the same", output)
    assert "DivergenceError: barrier 'b' on process 2" in output
    assert re.search(
        r"DivergenceError: barrier 'a' on process [01]\n.*given: called here at \S+program\.py:\d+,"
        r" where processes 0-2 are to do the same\n",
        output,
    )
    told = re.findall(r"was the first to report a failure: .*\n(.*)", output)
    assert told
    assert not any("given:" in line for line in told), output


@pytest.mark.private_names
def test_an_error_that_differs_in_seconds_is_shown_once(tmp_path: Path):
    program = """
    process = hostmesh.initialize().process
    hostmesh.barrier("all here")
    raise ValueError(f"waited for {process}.5 s")
    """
    _, output = cluster(tmp_path, program)
    assert output.count("Traceback (most recent call last):") == 1, output
    assert re.search(r"hostmesh: process [01] of 2 failed in the same way, at the same", output)


@pytest.mark.private_names
def test_without_a_launcher_who_raises_is_named_with_its_traceback(tmp_path: Path):
    program = """
    import subprocess, sys
    names = ["COORDINATOR", "PROCESSES", "PROCESS"]
    address, processes, process = [os.environ.pop("HOSTMESH_" + name) for name in names]
    del os.environ["HOSTMESH_FAILURES"]
    hostmesh.initialize(
        coordinator_address=address, num_processes=int(processes), process_id=int(process)
    )
    if process == "1":
        raise ValueError("\\n".join(["bad luck", "x" * 1000, "do: try again"]))
    time.sleep(1)
    """
    result, output = cluster(tmp_path, program)
    assert [e.status for e in result.exits] == [0, 1]
    mine = [line[4:] for line in output.splitlines() if line.startswith("[0] ")]
    assert mine[0].endswith(
        "process 1 of 2 was the first to report a failure: ValueError: bad luck"
    )
    assert mine[1:4] == ["x" * 300, "do: try again", "Traceback (most recent call last):"]
    assert mine[-3:] == ["ValueError: bad luck", "x" * 1000, "do: try again"]


@pytest.mark.private_names
def test_who_is_waited_for_too_long_at_the_end_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    program = """
    process = hostmesh.initialize(shutdown_timeout=1).process
    time.sleep(60 * process)
    """
    start = time.monotonic()
    result, output = cluster(tmp_path, program)
    assert time.monotonic() - start < 60
    assert (
        "[0] hostmesh: process 0 of 2 ended, and did not wait longer than 1 s for process 1"
    ) in output.splitlines()
    assert result.exits[0].status == 0
    assert result.first_failure == result.exits[1]  # JAX aborts it: its coordinator is gone


def test_a_program_may_shut_jax_down_itself(tmp_path: Path):
    result, output = cluster(tmp_path, "hostmesh.initialize(); jax.distributed.shutdown()")
    assert (result.status, output) == (0, "")


def test_with_public_names_only(tmp_path: Path):
    program = """
    assert hostmesh.initialize().processes == 2
    assert hostmesh.initialize(num_processes=2).detector == "hostmesh run"
    assert meet() == 2.0
    """
    result, output = cluster(tmp_path, program, environment={"HOSTMESH_PUBLIC_API": "1"})
    assert (result.status, output) == (0, "")


def test_slurm_is_left_to_jax(tmp_path: Path):
    program = f"""
    names = ["COORDINATOR", "PROCESSES", "PROCESS"]
    address, processes, process = [os.environ.pop("HOSTMESH_" + name) for name in names]
    host, _, port = address.partition(":")
    values = ["77", host, processes, process, process]
    os.environ.update(dict(zip({_initialize._SLURM!r}, values)), JAX_COORDINATOR_PORT=port)
    cluster = hostmesh.initialize()
    print(cluster.process, cluster.processes, cluster.detector, "|", cluster.reason)
    """
    result, output = cluster(tmp_path, program)
    assert result.status == 0, output
    assert sorted(output.splitlines()) == [
        f"[{p}] {p} 2 SLURM | SLURM_JOB_ID=77, SLURM_STEP_NODELIST=127.0.0.1, SLURM_NTASKS=2, "
        f"SLURM_PROCID={p}, SLURM_LOCALID={p}"
        for p in range(2)
    ]


@pytest.mark.private_names
def test_a_cluster_that_jax_was_told_of_is_taken_as_it_is(tmp_path: Path):
    program = """
    names = ["COORDINATOR", "PROCESSES", "PROCESS"]
    address, processes, process = [os.environ["HOSTMESH_" + name] for name in names]
    jax.distributed.initialize(address, int(processes), int(process))
    os.environ["HOSTMESH_WATCHDOG"] = "60"
    cluster = hostmesh.initialize()
    hostmesh.stragglers()  # an error without a watchdog
    hostmesh.initialize()
    print(cluster.process, cluster.processes, cluster.coordinator == address, cluster.detector)
    """
    result, output = cluster(tmp_path, program)
    assert result.status == 0, output
    assert sorted(output.splitlines()) == [
        f"[{p}] {p} 2 True jax.distributed.initialize" for p in range(2)
    ]


@pytest.mark.private_names
def test_a_backend_that_is_up_is_traced_to_the_line_that_started_it(tmp_path: Path):
    (tmp_path / "helper.py").write_text("import jax\ndef count():\n    return len(jax.devices())\n")
    error = alone(
        tmp_path,
        """
        import hostmesh, helper
        helper.count()
        hostmesh.initialize(coordinator_address="127.0.0.1:1", num_processes=2, process_id=0)
        """,
    )
    helper, program = tmp_path / "helper.py", tmp_path / "program.py"
    assert (
        f"given: a JAX backend, which was started at {helper}:3 in count: return len(jax.devices())"
        f" (reached from {program}:3: helper.count())"
    ) in error
    assert "rule:  a process joins its cluster before its first backend: 1 is up" in error


@pytest.mark.private_names
def test_a_backend_that_was_up_before_hostmesh_is_traced_to_modules(tmp_path: Path):
    (tmp_path / "innocent.py").write_text("import math\n")
    (tmp_path / "early.py").write_text("import jax.numpy as jnp\nTABLE = jnp.zeros(3)\n")
    error = alone(
        tmp_path,
        """
        import innocent, early, hostmesh
        hostmesh.initialize(coordinator_address="127.0.0.1:1", num_processes=2, process_id=0)
        """,
    )
    assert "before hostmesh was imported; modules that use JAX and were imported before" in error
    assert re.search(r"in order: early\n", error)


def test_the_logger_of_backends_shows_no_more_than_before(tmp_path: Path):
    program = """
    import logging
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    import hostmesh, jax
    jax.devices()
    logger = logging.getLogger("jax._src.xla_bridge")
    print(logger.level, logger.filters, file=sys.stderr)
    """
    assert [
        line
        for line in alone(tmp_path, "import sys\n" + textwrap.dedent(program)).splitlines()
        if "Initializing backend" in line or line == "0 []"
    ] == ["0 []"]


def test_no_launcher_and_no_arguments_is_one_process(bare: pytest.MonkeyPatch):
    first = _initialize.initialize()
    assert first == _initialize.Cluster(0, 1, None, "single process", "no launcher was detected")
    assert _initialize.initialize() is first
    with pytest.raises(ClusterError, match=r"process 0 of 1, again\n  given: process_id=1"):
        _initialize.initialize(process_id=1)


def test_one_process_may_be_asked_for_anywhere(bare: pytest.MonkeyPatch):
    for name, value in members([1, 1])[1].environment().items():
        bare.setenv(name, value)
    bare.setenv("SLURM_JOB_ID", "77")
    found = _initialize.initialize(num_processes=1)
    assert (found.process, found.processes, found.detector) == (0, 1, "single process")


@pytest.mark.private_names
@pytest.mark.parametrize("missing", [("SLURM_STEP_NODELIST",), ("SLURM_PROCID", "SLURM_LOCALID")])
def test_half_of_slurm_is_an_error_that_says_which_half(bare: pytest.MonkeyPatch, missing):
    present = [name for name in _initialize._SLURM if name not in missing]
    for name in present:
        bare.setenv(name, "1")
    with pytest.raises(ClusterError) as caught:
        _initialize.initialize()
    text = str(caught.value)
    assert f"given: SLURM's {', '.join(present)} without {', '.join(missing)}\n" in text
    assert "start the program with srun; to run as one process, call hostmesh.initialize(" in text


@pytest.mark.parametrize("name", _initialize._SIGNS)
def test_several_processes_that_jax_does_not_detect_are_not_each_alone(
    bare: pytest.MonkeyPatch, name: str
):
    bare.setattr(_jax, "detected_cluster", lambda: None)  # a later JAX detects some of them
    bare.setenv(name, "4")
    with pytest.raises(ClusterError, match=f"given: {name}=4\n  rule:  this is one of several"):
        _initialize.initialize()


def test_half_of_the_arguments_is_an_error(bare: pytest.MonkeyPatch):
    with pytest.raises(
        ClusterError, match="num_processes=4, process_id=None\n  rule:  no launcher"
    ):
        _initialize.initialize(num_processes=4)


def test_arguments_go_before_the_launcher(bare: pytest.MonkeyPatch):
    member = members([1, 1, 1])[1]
    for name, value in member.environment().items():
        bare.setenv(name, value)
    found = _initialize._find("10.0.0.1:99", 8, 5)
    assert (found.process, found.processes, found.coordinator) == (5, 8, "10.0.0.1:99")
    assert found.detector == "arguments"
    found = _initialize._find(None, None, 2)
    assert (found.process, found.processes, found.coordinator) == (2, 3, member.coordinator)
    assert found.detector == "hostmesh run"


def test_a_coordinator_that_is_not_there_is_an_error_in_time():
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(
        ClusterError, match=f"{address}\n  rule:  nothing answered there within 0.3 s"
    ):
        _initialize._await_coordinator(address, 0.3, "hostmesh.initialize()")


def test_a_coordinator_that_comes_late_is_waited_for(tmp_path: Path):
    program = """
    if os.environ["HOSTMESH_PROCESS"] == "0":
        time.sleep(1.5)
    assert hostmesh.initialize(timeout=60).processes == 2
    """
    result, output = cluster(tmp_path, program)
    assert (result.status, output) == (0, "")


def test_who_does_not_come_in_time_is_told_of_before_jax_aborts(tmp_path: Path):
    program = """
    if os.environ["HOSTMESH_PROCESS"] == "1":
        time.sleep(600)
    hostmesh.initialize(timeout=1)
    """
    result, output = cluster(tmp_path, program)
    assert "[0] hostmesh: not all processes have come within 1 s" in output
    assert result.first_failure == result.exits[0]


def test_a_place_survives_the_environment(monkeypatch: pytest.MonkeyPatch):
    for member in members([2, 1], port=free_port()):
        assert member_from_environment(member.environment()) == member
    assert member_from_environment({}) is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, None),
        ({"http_proxy": "http://proxy:1"}, "127.0.0.1"),
        ({"HTTPS_PROXY": "http://proxy:1", "no_proxy": "a,b"}, "a,b,127.0.0.1"),
    ],
)
def test_loopback_does_not_go_through_a_proxy(
    monkeypatch: pytest.MonkeyPatch, before: dict[str, str], after: str | None
):
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    for name, value in before.items():
        monkeypatch.setenv(name, value)
    assert members([1])[0].environment().get("no_grpc_proxy") == after
