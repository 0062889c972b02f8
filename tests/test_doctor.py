"""The doctor on real clusters: a healthy one, one that is wrong in many ways, and missing processes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import hostmesh as hm
from hostmesh import _run
from hostmesh._cluster import free_port
from hostmesh._doctor import _measure, _rollcall

DOCTOR = [sys.executable, "-m", "hostmesh", "doctor"]
TOKEN = "hush-hush-0123"


def looked(command: list[str], devices: list[int], **options: Any) -> tuple[int, str]:
    output = io.BytesIO()
    result = _run.run(command, devices, output=output, timeout=100, **options)
    return result.status, output.getvalue().decode()


def test_a_healthy_cluster(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    command = [*DOCTOR, "--mesh", "data=4,model=2", "--output", str(file)]
    for _ in range(3):  # a machine that does much else may be slow for a while, and is told so
        status, text = looked(command, [2] * 4)
        if not status:
            break
    assert status == 0, text
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80, text
    assert "mesh axis data=4: crosses processes of a host" in text
    assert "mesh axis model=2: within a process" in text
    assert "4 processes, healthy, in " in lines[-1]
    assert {line[:3] for line in lines} == {"[0]"}  # process 0 speaks for all
    found = json.loads(file.read_text())
    assert found["status"] == 0
    assert [of["process"] for of in found["processes"]] == [0, 1, 2, 3]
    assert {of["versions"]["jax"] for of in found["processes"]} == {jax.__version__}
    measured = [of["measured"] for of in found["processes"]]
    for of in measured:
        assert set(of["allgather"]) == set(of["broadcast"]) == set(map(str, _measure.SIZES))
        assert len(of["links"]) == 2
    if os.environ.get("HOSTMESH_PUBLIC_API", "") in ("", "0"):
        assert all(0 < of["round_trip"] <= of["round_trip_worst"] for of in measured)
        assert all(abs(of["clock"]) < 0.5 for of in measured)


@contextmanager
def delayed(port: int, seconds: float) -> Generator[int]:
    """A port whose connections go on to another port, each way so much later."""
    threads: list[threading.Thread] = []
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def start(target: Callable[..., None], *args: socket.socket) -> None:
            threads.append(threading.Thread(target=target, args=args))
            threads[-1].start()

        def pump(source: socket.socket, sink: socket.socket) -> None:
            with suppress(OSError):
                while data := source.recv(1 << 16):
                    time.sleep(seconds)
                    sink.sendall(data)
            for end in (source, sink):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    guest = stack.enter_context(server.accept()[0])
                    try:
                        onward = socket.create_connection(("127.0.0.1", port))
                    except OSError:
                        guest.close()
                        continue
                    stack.enter_context(onward)
                    start(pump, guest, onward)
                    start(pump, onward, guest)

        start(accept)
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(30)


WRONG = f"""
export LEARNING_RATE=0.1 MY_TOKEN=usual
case $HOSTMESH_PROCESS in
1) export PYTHONPATH=$STUB:$PYTHONPATH ;;
2) ulimit -n 200
   export XLA_FLAGS="$XLA_FLAGS --xla_cpu_enable_fast_math=true" LEARNING_RATE=0.2 ;;
3) export MY_TOKEN={TOKEN} HOSTMESH_COORDINATOR=127.0.0.1:$SLOW ;;
esac
exec "$0" -m hostmesh doctor --mesh data=8
"""

# What process 1 imports when its Python starts: another jaxlib, and a clock that is an hour fast.
STUB = """
import time, jaxlib
jaxlib.__version__ = "0.0.1"
real = time.time
time.time = lambda: real() + 3600
"""


@pytest.mark.private_names
def test_what_is_wrong_is_named_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(STUB)
    port = free_port()
    with delayed(port, 0.015) as slow:
        environment = {
            "XLA_FLAGS": "--xla_cpu_enable_fast_min_max=false",
            "STUB": str(tmp_path),
            "SLOW": str(slow),
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        }
        command = ["sh", "-c", WRONG, sys.executable]
        status, text = looked(command, [2, 2, 2, 1], port=port, environment=environment)
    assert status == 2, text
    assert TOKEN not in text
    found = " ".join(line.removeprefix("[0]").strip() for line in text.splitlines())
    usual = jax.lib.__version__
    for words in (
        f"error: the version of jaxlib differs: processes 0, 2-3: {usual}; process 1: 0.0.1. Do:"
        f" install jaxlib {usual} everywhere",
        "error: XLA_FLAGS differs, beside 1 that all have: processes 0-1, 3: without; process 2:"
        " --xla_cpu_enable_fast_math=true. Do: give all processes the same XLA_FLAGS",
        "error: the mesh data=8 has 8 places, and there are 7 devices. Do: choose sizes",
        "warning: the variable LEARNING_RATE differs: processes 0-1, 3: '0.1'; process 2: '0.2'. Do:"
        " set LEARNING_RATE alike",
        "warning: the variable MY_TOKEN differs: processes 0-2: (not shown) #1; process 3: (not"
        " shown) #2. Do: set",
        "warning: the number of local devices differs: processes 0-2: 2; process 3: 1. Do: give",
        "warning: few open files are allowed, and 4 processes want 576 each: process 2: 200. Do:"
        " raise",
        "warning: clocks are off, by more than 0.5 s from most: process 1: 3600 s ahead. Do: set"
        " them by NTP",
        "warning: a round trip to the coordinator is slow: process 3 (",
    ):
        assert words in found, text


def in_threads(calls: list[Callable[[], None]]) -> list[BaseException | None]:
    raised: list[BaseException | None] = [None] * len(calls)

    def run(number: int) -> None:
        try:
            calls[number]()
        except hm.HostmeshError as error:
            raised[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return raised


def test_a_process_that_never_starts_is_named_by_all_others() -> None:
    address = f"127.0.0.1:{free_port()}"
    calls = [lambda p=p: _rollcall.call(p, 4, address, 1.0) for p in (0, 1, 3)]
    for error in in_threads(calls):
        assert isinstance(error, hm.StragglerError)
        assert f"given: 3 of 4 processes came to {address}" in str(error)
        assert "rule:  process 2 did not come within 1 s" in str(error)
        assert "do:    see on its host whether it was started" in str(error)


@pytest.mark.parametrize("only_there", [True, False])
def test_all_that_come_go_on_and_the_port_is_free(only_there: bool) -> None:
    port = free_port()
    count: list[int] = []
    calls = [
        lambda p=p: _rollcall.call(
            p, 3, f"127.0.0.1:{port}", 20.0, only_there=only_there, came=count.append
        )
        for p in (2, 1, 0)
    ]
    assert in_threads(calls) == [None] * 3
    assert count == [2, 3]
    socket.create_server(("127.0.0.1", port)).close()


def test_a_process_0_that_never_starts_is_named() -> None:
    (error,) = in_threads([lambda: _rollcall.call(1, 2, f"127.0.0.1:{free_port()}", 0.3)])
    assert isinstance(error, hm.ClusterError)
    assert "process 0 did not answer there within 0.3 s: [Errno 111]" in str(error)


def test_a_missing_process_ends_the_command_with_2() -> None:
    program = '[ $HOSTMESH_PROCESS = 1 ] || exec "$0" -m hostmesh doctor --timeout 1'
    status, text = looked(["sh", "-c", program, sys.executable], [1, 1])
    assert status == 2
    assert "[0] error: hostmesh doctor on process 0 of 2" in text
    assert "rule:  process 1 did not come within 1 s" in text


@pytest.mark.multiprocess(processes=4, devices=2)
@pytest.mark.private_names
def test_in_a_program_all_get_the_findings_and_a_late_process_is_named() -> None:
    me = jax.process_index()
    if me == 3:
        time.sleep(2.5)
    with pytest.raises(hm.StragglerError, match="process 3 did not come within 1 s"):
        hm.doctor(timeout=1)
    devices = np.array(jax.devices())
    found = hm.doctor(mesh=Mesh(devices.reshape(4, 2).T.reshape(8), "x"))
    refused = [finding for finding in found.findings if "JAX's own" in finding.what]
    assert [finding.who for finding in refused] == [(0, 1, 2, 3)]
    assert found.status >= 1
    assert [str(axis) for axis in found.axes] == ["crosses processes of a host"]
    assert len(found.facts) == len(found.figures) == (4 if me == 0 else 1)
    assert "4 processes, " in str(found)


def test_one_process_alone() -> None:
    done = subprocess.run([*DOCTOR, "--json"], capture_output=True, text=True, timeout=60)
    found = json.loads(done.stdout)
    assert done.returncode == found["status"] < 2, done.stdout
    assert found["processes"][0]["detector"] == "single process"
    assert found["processes"][0]["measured"]["to_device"] > 0


@pytest.mark.private_names
def test_the_import_that_starts_a_backend(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("from . import part\n")
    (package / "part.py").write_text(
        "import jax.numpy as jnp\n\ndef table():\n    return jnp.arange(3)\n\nTABLE = table()\n"
    )
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [*DOCTOR, "--import-trace", "package"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1, done.stderr
    assert f"started at {package}/part.py:4 in table: return jnp.arange(3)" in done.stdout
    assert f"  package ({package}/__init__.py:1): from . import part\n" in done.stdout
    assert f"  package.part ({package}/part.py:6): TABLE = table()\n" in done.stdout
    assert "more calls within jax" in done.stdout
