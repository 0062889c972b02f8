"""Broadcasts and gathers from four threads at once: hostmesh pairs all rightly; JAX is shown beside."""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROCESSES, DEVICES, THREADS = 4, 2, 4


def storm(library: str, alike: bool, rounds: int, notes: str) -> None:
    """In every process: `rounds` rounds in each thread; notes each as soon as it has ended."""
    import random
    import threading
    import time

    import jax
    import numpy as np
    from jax.experimental import multihost_utils

    import hostmesh

    me, count = jax.process_index(), jax.process_count()
    gathers: dict[str, Callable[[Any], Any]] = {
        "jax": multihost_utils.process_allgather,
        "hostmesh": hostmesh.allgather,
    }
    broadcasts: dict[str, Callable[[Any], Any]] = {
        "jax": multihost_utils.broadcast_one_to_all,
        "hostmesh": hostmesh.broadcast,
    }

    def work(thread: int) -> None:
        together, alone = random.Random(thread), random.Random(f"{thread} {me}")
        size = 600 if alike else 600 + 100 * thread
        with hostmesh.channel(f"thread {thread}"), open(f"{notes}/{me}-{thread}", "w") as file:
            for number in range(rounds):
                if alone.random() < 0.3:
                    time.sleep(alone.random() * 0.003)
                values = [
                    np.full(size, (thread * rounds + number) * count + p, np.int32)
                    for p in range(count)
                ]
                try:
                    if together.random() < 0.5:
                        got, expected = broadcasts[library](values[me]), values[0]
                    else:
                        got, expected = gathers[library](values[me]), np.stack(values)
                    word = "right" if np.array_equal(got, expected) else "wrong"
                except Exception as error:
                    told = f"{type(error).__name__}: {error}".splitlines()[0]
                    word = re.sub(r"\[[^]]*\](:\d+)?", "", told)  # addresses, lines of C++
                file.write(f"{word}\n")
                file.flush()

    threads = [threading.Thread(target=work, args=(t,), daemon=True) for t in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def experiment(library: str, alike: bool, rounds: int, seconds: float) -> str:
    """Runs a storm in a cluster of its own; what became of its calls, in words."""
    import hostmesh.testing
    from hostmesh import ClusterError

    env = {"HOSTMESH_BENCHMARK": f"{library} {alike}"}
    with tempfile.TemporaryDirectory() as notes:
        end = "ended"
        try:
            hostmesh.testing.run(
                storm, PROCESSES, DEVICES, (library, alike, rounds, notes), timeout=seconds, env=env
            )
        except ClusterError as error:
            died = re.search(r"exit code \d|\(signal \d+\)", str(error))
            end = "a process died" if died else f"had not ended after {seconds:g} s"
        words = [word for file in Path(notes).iterdir() for word in file.read_text().splitlines()]
    kinds = {word: words.count(word) for word in sorted(set(words), key=words.count, reverse=True)}
    total = rounds * THREADS * PROCESSES
    told = [f"{n} {word}" for word, n in list(kinds.items())[:4]]
    return (
        f"{end}; of {total} calls {', '.join(told) or 'none ended'}, {total - len(words)} not ended"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=250, help="in each of four threads")
    parser.add_argument("--seconds", type=float, default=60, help="for each experiment at most")
    options = parser.parse_args()
    for alike in (False, True):
        print(f"{THREADS} threads, {'equal' if alike else 'different'} shapes in all threads")
        for library in ("hostmesh", "jax"):
            print(f"  {library}: {experiment(library, alike, options.rounds, options.seconds)}")


if __name__ == "__main__":
    main()
