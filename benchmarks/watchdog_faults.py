"""Faults on purpose in real processes, and what the watchdog says of each: a table.

    python benchmarks/watchdog_faults.py --processes 4 8 --repeats 5

In each run one process of a training loop goes wrong in one way, at a step. The report must name
that process and its line (of one that is gone, the last known one) within the time-out and five
seconds, and all processes must end, as the action says, or go on.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path
from typing import NamedTuple

from hostmesh._cluster import members
from hostmesh._hosts import placed

# The line that each must be named with is marked HERE.
KINDS = {
    "loop": "while True: pass  # HERE",
    "sleep": "time.sleep(1000)  # HERE",
    "lock": "lock.acquire(); lock.acquire()  # HERE",
    "held": "ctypes.PyDLL(None).sleep(1000)  # HERE",
    "read": "os.read(os.pipe()[0], 1)  # HERE",
    "stop": "os.kill(os.getpid(), signal.SIGSTOP)  # HERE",
    "kill": "os.kill(os.getpid(), signal.SIGKILL)  # HERE",
    "exit": "os._exit(0)  # HERE",
    "swallowed": "reader(); fed.get()  # HERE",
    "skipped": "skipped = True  # HERE",
    "cut": "link('down'); time.sleep(1000)  # HERE",
    "mended": "link('down'); time.sleep({timeout} + 4); link('up')  # HERE",
}
# Of these only the last place that was known can be told.
GONE = ("stop", "kill", "exit", "cut", "mended")
# On two hosts, which are network namespaces: the link of the second is cut, for good or for a while.
LINK = ("cut", "mended")
PROGRAM = """
import ctypes, os, queue, signal, subprocess, sys, threading, time
import hostmesh as hm
hm.initialize()
import jax
lock, fed, skipped = threading.Lock(), queue.Queue(), False
me = jax.process_index()

def reader():
    def read():
        raise ValueError("a bad record")
    thread = threading.Thread(target=read, name="reader")
    thread.start()
    thread.join()

def link(state):
    subprocess.run(["ip", "link", "set", "eth0", state], check=True)

mesh = jax.make_mesh((jax.device_count(),), ("x",))
plain = {plain}
P = jax.sharding.PartitionSpec

@jax.jit
@jax.shard_map(mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
def mean(x):
    return jax.lax.psum(x, "x") / jax.device_count()

x = hm.to_global(1.0, mesh, P())

def work():
    time.sleep(0.05)

watchdog = hm.Watchdog(timeout={timeout}, action="{action}").start()
for step in range(10_000):
    watchdog.step(step)
    work()
    if me == {process} and step == {step}:
        print("fault", time.time(), flush=True)
        {fault}
    if plain:
        if not skipped:
            x = mean(x)
            float(x)
        skipped = False
    else:
        if not skipped:
            hm.barrier("evaluated", timeout=600)
        skipped = False
    if step % 5 == 0 or not plain:
        hm.barrier("step", timeout=600)  # THERE
"""


class Outcome(NamedTuple):
    """What came of one run: seconds from the fault to the report, and until all had ended."""

    named: bool
    line: bool
    reported: float
    ended: float
    statuses: tuple[int, ...]
    text: str


def run(
    kind: str,
    processes: int,
    process: int,
    timeout: float,
    action: str,
    plain: bool,
    limit: float = 60.0,
) -> Outcome:
    """One run of one fault."""
    if kind == "mended":
        action = "report"
    fault = KINDS[kind].format(timeout=timeout)
    program = textwrap.dedent(PROGRAM).format(
        timeout=timeout, action=action, process=process, step=10, fault=fault, plain=plain
    )
    mark = {"skipped": "# THERE"}.get(kind, "# HERE")
    place = 1 + next(n for n, line in enumerate(program.splitlines()) if mark in line)
    with (
        tempfile.TemporaryDirectory() as folder,
        placed(processes, 2 if kind in LINK else None) as hosts,
    ):
        script = Path(folder, "train.py")
        script.write_text(program)
        began: list[float] = []
        lines: list[tuple[int, float, str]] = []
        started = [
            subprocess.Popen(
                host.command([sys.executable, "-u", str(script)]),
                env={**os.environ, **member.environment(), "HOSTMESH_WATCHDOG_FOLDER": folder},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for member, host in zip(
                members([1] * processes, host=hosts[0].address), hosts, strict=True
            )
        ]

        def follow(number: int, one: subprocess.Popen[str]) -> None:
            assert one.stdout is not None
            for line in one.stdout:
                if line.startswith("fault "):
                    began.append(float(line.split()[1]))
                lines.append((number, time.time(), line))

        threads = [
            threading.Thread(target=follow, args=numbered, daemon=True)
            for numbered in enumerate(started)
        ]
        for thread in threads:
            thread.start()
        ended = 0.0
        try:
            stays = (
                process if kind == "stop" else -1
            )  # a stopped one ends when its launcher ends it
            awaited = [one for number, one in enumerate(started) if number != stays]
            deadline = time.time() + limit
            while time.time() < deadline and any(one.poll() is None for one in awaited):
                time.sleep(0.05)
                if kind == "mended":
                    if any("after" in line and " go" in line for _, _, line in lines):
                        break
                elif action == "report" and began and time.time() > began[0] + timeout + 6:
                    break
            ended = time.time()
        finally:
            statuses = tuple(one.poll() if one.poll() is not None else 999 for one in started)
            for one in started:
                one.send_signal(signal.SIGKILL)
                one.wait()
            for thread in threads:
                thread.join(3)
    text = "".join(line for _, _, line in sorted(lines, key=lambda item: item[0]))
    start = began[0] if began else 0.0
    # A skipped collective of hostmesh is an error at once, without the watchdog.
    sign = r"hostmesh: watchdog: .*process|DivergenceError|rule: .*process"
    first = min((at for _, at, line in lines if re.search(sign, line)), default=float("inf"))
    joined = re.sub(r"\nhostmesh: {5,}", " ", text)  # sentences that go over several lines
    heads = [line for line in joined.splitlines() if re.search(sign, line)]
    if kind != "skipped":  # that error comes in several sentences
        heads = heads[:1]
    named = any(process in _processes(head) for head in heads)
    known = rf"process {process}: .*train\.py:" if kind in GONE else rf"train\.py:{place}\b"
    line = re.search(known, joined) is not None
    return Outcome(named, line, first - start, ended - start, statuses, text)


def _processes(sentence: str) -> set[int]:
    """Those that it names, such as "processes 2-3, 5"."""
    listed = re.findall(r"process(?:es)? (\d[\d, -]*)", sentence)
    runs = re.findall(r"(\d+)(?:-(\d+))?", " ".join(listed))
    return {number for a, b in runs for number in range(int(a), int(b or a) + 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, nargs="*", default=[4, 8])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--timeout", type=float, default=3.0)
    parser.add_argument("--action", default="exit")
    parser.add_argument("--faulty", type=int, help="the process that goes wrong; default: the last")
    parser.add_argument("--plain", action="store_true", help="device collectives of a jitted step")
    parser.add_argument("--show", action="store_true", help="print the output of every run")
    options = parser.parse_args()
    print(f"time-out {options.timeout:g} s, action {options.action}; seconds from the fault")
    for count in options.processes:
        faulty = count - 1 if options.faulty is None else options.faulty
        for kind in options.kinds:
            every = [
                run(kind, count, faulty, options.timeout, options.action, options.plain)
                for _ in range(options.repeats)
            ]
            reported = [one.reported for one in every]
            print(
                f"P={count} {kind:10s} named {sum(o.named for o in every)}/{len(every)}"
                f" line {sum(o.line for o in every)}/{len(every)}"
                f" reported {statistics.median(reported):5.1f} (worst {max(reported):5.1f})"
                f" ended {max(o.ended for o in every):5.1f}"
                f" statuses {every[-1].statuses}",
                flush=True,
            )
            if options.show:
                print(every[-1].text, flush=True)


if __name__ == "__main__":
    main()
