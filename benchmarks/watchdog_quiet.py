"""No false alarm: a training loop that pauses in every way it may, for half an hour.

    python benchmarks/watchdog_quiet.py --minutes 30

One process at a time, at random, sleeps, holds the GIL in C, or collects garbage, always for less
than the time-out; all compile for longer than it, or one alone does while the others wait; and the
launcher stops all processes (SIGSTOP) for longer than it, and lets them go on. The table says how
often each happened and how long the longest took. Any word of the watchdog is a false alarm.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from hostmesh._cluster import members

PROGRAM = """
import ctypes, gc, random, time
import hostmesh as hm
hm.initialize()
import jax
import jax.numpy as jnp
import numpy as np

me, timeout = jax.process_index(), {timeout}
mesh = jax.sharding.Mesh(jax.devices(), "x")
P = jax.sharding.PartitionSpec
chosen = random.Random({seed})  # the same in all processes

@jax.jit
def step(rows, weights):
    return weights - 1e-3 * rows.T @ jnp.tanh(rows @ weights)

def compiles(length):
    salt = time.time()  # no two programs are alike
    def unrolled(x):
        for number in range(length):
            x = jnp.sin(x * (salt + number)) + jnp.cumsum(x)
        return x
    jax.jit(unrolled).lower(jnp.ones(8)).compile()

def garbage(seconds):
    until = time.time() + seconds / 2
    rings = []
    while time.time() < until:
        ring = []
        ring.append(ring)
        rings.append([ring, rings[-1] if rings else None])
    del rings, ring
    gc.collect()

def holds_the_gil(seconds):
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))

KINDS = ["sleep", "GIL held", "garbage", "compile, all", "compile, one"]
rows = np.ones((64, 64), np.float32)
weights = hm.to_global(np.zeros((64, 64), np.float32), mesh, P())
length, number, began = 50, 0, time.time()
with hm.Watchdog(timeout=timeout):
    while hm.same_choice(time.time() - began < {seconds}):
        for _ in range(chosen.randrange(20, 60)):
            hm.watchdog.step(number)
            weights = step(hm.to_global(rows, mesh, P("x")), weights)
            weights.block_until_ready()
            number += 1
        kind, who = chosen.choice(KINDS), chosen.randrange(jax.process_count())
        pause = chosen.uniform(0.1, 0.7) * timeout
        start = time.time()
        if me == who or kind == "compile, all":
            if kind == "sleep":
                time.sleep(pause)
            elif kind == "GIL held":
                holds_the_gil(pause)
            elif kind == "garbage":
                garbage(pause)
            else:
                compiles(length)
        took = time.time() - start
        if me == who:
            print(f"did {{kind}}: {{took}}", flush=True)
        if kind.startswith("compile"):  # until it is longer than the time-out by half
            longest = max(hm.allgather_object(took))
            wanted = length * (1.5 * timeout / longest) ** 0.5  # compiling grows faster than length
            length = int(min(max(wanted, length / 2), length * 1.5))
    print("steps", number, flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--timeout", type=float, default=10)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(
            PROGRAM.format(timeout=options.timeout, seconds=options.minutes * 60, seed=options.seed)
        )
        started = [
            subprocess.Popen(
                [sys.executable, "-u", str(script)],
                env={**os.environ, **member.environment()},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for member in members([1] * options.processes)
        ]
        lines: list[str] = []
        readers = [threading.Thread(target=lines.extend, args=(one.stdout,)) for one in started]
        for reader in readers:
            reader.start()
        took: dict[str, list[float]] = collections.defaultdict(list)
        chosen = random.Random(options.seed)
        try:
            while any(one.poll() is None for one in started):
                until = time.time() + chosen.uniform(30, 90)
                while time.time() < until and any(one.poll() is None for one in started):
                    time.sleep(0.2)
                pause = chosen.uniform(1.2, 2.5) * options.timeout
                for one in started:
                    one.send_signal(signal.SIGSTOP)
                time.sleep(pause)
                if all(one.poll() is None for one in started):
                    took["all stopped"].append(pause)
                for one in started:
                    one.send_signal(signal.SIGCONT)
        finally:
            for one in started:
                one.kill()
            for reader in readers:
                reader.join()
    for line in list(lines):
        if line.startswith("did "):
            kind, seconds = line[4:].split(": ")
            took[kind].append(float(seconds))
    alarms = [line for line in lines if line.startswith("hostmesh: watchdog:")]
    words = [line for line in lines if line.startswith("hostmesh:")]
    print(f"{options.processes} processes, {options.minutes:g} min, time-out {options.timeout:g} s")
    for kind, seconds in sorted(took.items()):
        print(f"  {kind:13s} {len(seconds):4d} times, {max(seconds):5.1f} s at most")
    print(f"  {' '.join(next((line for line in lines if line.startswith('steps')), '').split())}")
    print(f"  exit statuses {[one.returncode for one in started]}; false alarms: {len(alarms)}")
    print("".join(words), end="")
    if any(one.returncode for one in started):
        print("".join(lines[-40:]))


if __name__ == "__main__":
    main()
