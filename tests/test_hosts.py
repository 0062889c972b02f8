"""Several hosts on one machine: collectives between them, names that mislead, and what is left."""

from __future__ import annotations

import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import hostmesh
import processes
from hostmesh import _hosts, _run
from hostmesh._cluster import members

_possible = sys.platform == "linux" and os.geteuid() == 0 and shutil.which("ip") is not None
if not _possible and not os.environ.get("CI"):
    pytest.skip("hosts take Linux, root and iproute2", allow_module_level=True)


def made_by(pid: int) -> list[str]:
    """What is there of the hosts that process `pid` has made."""
    folders = [folder for folder in (_hosts._NAMESPACES, _hosts.FILES) if folder.is_dir()]
    return [str(p) for f in folders for p in f.iterdir() if p.name.startswith(f"hostmesh-{pid}-")]


@pytest.mark.multiprocess(processes=4, devices=2, hosts=2)
def test_processes_are_in_blocks_on_hosts_that_see_each_other_alone():
    import jax

    host = jax.process_index() // 2
    assert socket.gethostname() == f"host{host}"
    assert socket.gethostbyname(socket.gethostname()) == f"192.168.77.{host + 1}"
    assert {name for _, name in socket.if_nameindex()} >= {"lo", "eth0"}
    with socket.socket() as outside, pytest.raises(OSError, match="unreachable"):
        outside.connect(("192.0.2.1", 80))  # no route: it fails at once


@pytest.mark.multiprocess(processes=4, devices=2, hosts=2)
def test_collectives_pass_between_hosts():
    import jax

    me = jax.process_index()
    hostmesh.barrier("hosts")
    rows = hostmesh.allgather({"x": np.full(3, me, np.int16)})
    np.testing.assert_array_equal(rows["x"], np.arange(4, dtype=np.int16)[:, None] + [0, 0, 0])
    large = np.arange(1 << 18, dtype=np.float32) * (me + 1)
    np.testing.assert_array_equal(
        hostmesh.broadcast(large, source=3), np.arange(1 << 18, dtype=np.float32) * 4
    )


def test_the_collectives_tests_pass_between_hosts():
    tests = Path(__file__).with_name("test_collectives.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "multiprocess"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    done = subprocess.run(
        [*command, str(tests)],
        env={**environment, "HOSTMESH_TEST_HOSTS": "2"},  # read by conftest.py
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


@pytest.mark.private_names
def test_a_name_on_loopback_is_told_on_all_hosts_before_the_time_out(tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text(
        "import hostmesh, numpy as np\n"
        "hostmesh.initialize(timeout=100)\n"
        "print(hostmesh.allgather(np.zeros(3)))\n"
    )
    start = time.monotonic()
    with _hosts.placed(3, 3) as homes:
        names = _hosts.FILES / homes[2].namespace / "hosts"
        names.write_text(names.read_text().replace(homes[2].address, "127.0.0.1"))
        places = members([1] * 3, host=homes[0].address)
        with processes.started(program, places, homes) as started:
            outputs = [process.communicate(timeout=120)[0] for process in started]
    for process, output in zip(started, outputs, strict=True):
        assert process.returncode != 0, output  # 1, or JAX aborts it while it ends
        assert "ClusterError: hostmesh.initialize(): hostmesh run" in output
        assert "given: process 2: host 'host2' resolves to 127.0.0.1\n" in output
        assert "1 of 3 have a loopback address" in output
        assert "in /etc/hosts on that host, take 'host2' out of the line" in output
    assert time.monotonic() - start < 100


def test_nothing_is_left_when_a_run_ends():
    before = made_by(os.getpid())  # the warm clusters' own
    output = io.BytesIO()
    program = "import os, socket; print(socket.gethostname(), os.environ['HOSTMESH_COORDINATOR'])"
    result = _run.run([sys.executable, "-c", program], [1, 1, 1], hosts=2, output=output)
    assert result.status == 0
    lines = sorted(line.rpartition(":")[0] for line in output.getvalue().decode().splitlines())
    assert lines == ["[0] host0 192.168.77.1", "[1] host0 192.168.77.1", "[2] host1 192.168.77.1"]
    assert made_by(os.getpid()) == before


def test_what_a_killed_launcher_left_goes_at_the_next_start(tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text("import time\nprint('up', flush=True)\ntime.sleep(300)")
    command = [sys.executable, "-c", "from hostmesh._cli import main; main()", "run", "--hosts"]
    with subprocess.Popen([*command, "2", str(program)], stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        assert [launcher.stdout.readline()[4:] for _ in range(2)] == [b"up\n"] * 2
        assert len(made_by(launcher.pid)) == 5  # two hosts and their names, and the bridge
        launcher.send_signal(signal.SIGKILL)
        launcher.wait(60)
    with _hosts.placed(1, 1) as (home,):
        assert made_by(launcher.pid) == []
        assert (_hosts.FILES / home.namespace).is_dir()
    assert not (_hosts.FILES / home.namespace).exists()


@pytest.mark.parametrize(
    ("lack", "words"),
    [
        ("user", "given: this is user 1000"),
        ("ip", "given: there is no ip\n"),
        ("linux", "given: this is darwin"),
    ],
)
def test_what_hosts_take_is_said(lack: str, words: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000 if lack == "user" else 0)
    monkeypatch.setattr(sys, "platform", "darwin" if lack == "linux" else "linux")
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == lack else f"/bin/{tool}")
    with pytest.raises(hostmesh.ClusterError, match="2 hosts on this machine") as caught:
        _hosts.placed(2, 2).__enter__()
    assert words in str(caught.value)


def test_more_hosts_than_processes_are_refused():
    with pytest.raises(hostmesh.SpecError, match="given: 3 hosts for 2 processes"):
        _hosts.placed(2, 3).__enter__()
