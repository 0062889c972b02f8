"""10,000 mixed collectives of random sizes in random threads: no error, memory and store flat.

Resident memory still grows a little while programs compile, and with glibc's arena for each new
thread. `MALLOC_ARENA_MAX=1` and `--collectives 16000` show it flat without these two.
"""

from __future__ import annotations

import argparse
import os
import time

from _memory import MIB, resident

PROCESSES, DEVICES, THREADS = 4, 2, 4
STRETCH = 1000


def stretch(number: int) -> dict[str, float]:
    """In every process: `STRETCH` collectives, shared out over threads; then what is left of them."""
    import gc
    import random
    import threading
    from collections.abc import Callable
    from typing import Any

    import jax
    import numpy as np
    from jax.experimental.multihost_utils import sync_global_devices
    from jax.sharding import Mesh

    import hostmesh as hm
    from hostmesh import _jax

    me, count = jax.process_index(), jax.process_count()
    mesh = Mesh(np.array(jax.devices()).reshape(count, -1), ("x", "y"))
    errors: list[BaseException] = []
    compiled: list[str] = []

    def note(event: str, seconds: float, **_: Any) -> None:
        if event.endswith("backend_compile_duration"):
            compiled.append(event)

    def values(draw: random.Random) -> list[np.ndarray]:
        """What each process passes: of a random size up to a mebibyte, mostly small."""
        size, dtype = int(2 ** draw.uniform(0, 17)), draw.choice((np.float32, np.int64, np.uint8))
        base = draw.randrange(100)
        return [np.full(size, base + process, dtype) for process in range(count)]

    def check(got: Any, expected: Any) -> None:
        np.testing.assert_equal(jax.tree.map(np.asarray, got), expected)

    def allgather(draw: random.Random) -> None:
        of = values(draw)
        check(hm.allgather({"a": of[me], "b": np.int8(me)})["a"], np.stack(of))

    def tiled(draw: random.Random) -> None:
        of = [v[: len(v) // (p + 1)] for p, v in enumerate(values(draw))]
        check(hm.allgather(of[me], tiled=True), np.concatenate(of))

    def gather(draw: random.Random) -> None:
        of, to = values(draw), draw.randrange(count)
        got = hm.gather(of[me], to=to)
        check(got, np.stack(of) if me == to else None)

    def broadcast(draw: random.Random) -> None:
        of, source = values(draw), draw.randrange(count)
        check(hm.broadcast(of[me] if me == source else None, source=source), of[source])

    def reduce(draw: random.Random) -> None:
        of = [v.astype(np.int64) for v in values(draw)]
        check(hm.reduce(of[me]), np.sum(of, axis=0))

    def scatter(draw: random.Random) -> None:
        of, source = values(draw), draw.randrange(count)
        check(hm.scatter(of if me == source else None, source=source), of[me])

    def exchange(draw: random.Random) -> None:
        of = values(draw)
        got = hm.exchange([of[me][: 10 * to] for to in range(count)])
        for sender, piece in enumerate(got):
            check(piece, of[sender][: 10 * me])

    def equal(draw: random.Random) -> None:
        hm.assert_equal(values(draw)[0])

    def objects(draw: random.Random) -> None:
        of = [{"p": p, "text": "x" * int(2 ** draw.uniform(0, 14))} for p in range(count)]
        check(hm.allgather_object(of[me]), of)

    def one_object(draw: random.Random) -> None:
        of, source = values(draw), draw.randrange(count)
        check(hm.broadcast_object({"v": of[me]}, source=source), {"v": of[source]})

    def replicate(draw: random.Random) -> None:
        value = values(draw)[0].astype(np.float32)
        check(hm.replicate(value, mesh).addressable_data(0), value)

    def decide(draw: random.Random) -> None:
        who = draw.randrange(count + 1)
        assert hm.any_process(me == who) == (who < count)

    def barrier(draw: random.Random) -> None:
        hm.barrier(f"number {draw.randrange(9)}")

    kinds: list[Callable[[random.Random], None]] = [
        *(allgather, tiled, gather, broadcast, reduce, scatter, exchange),
        *(equal, objects, one_object, replicate, decide, barrier),
    ]

    def work(thread: int, calls: int) -> None:
        draw = random.Random(f"{number} {thread}")  # the same on all processes
        try:
            with hm.channel(f"soak {thread}"):
                for _ in range(calls):
                    draw.choice(kinds)(draw)
        except BaseException as error:
            errors.append(error)

    jax.monitoring.register_event_duration_secs_listener(note)
    owners = random.Random(number).choices(range(THREADS), k=STRETCH)
    threads = [
        threading.Thread(target=work, args=(thread, owners.count(thread)), daemon=True)
        for thread in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    jax.monitoring.unregister_event_duration_listener(note)
    if errors:
        raise errors[0]
    gc.collect()
    store = _jax.store()
    sync_global_devices("all have ended")  # nobody posts while all count
    keys = len(store.list("hostmesh/")) if store else 0
    sync_global_devices("all have counted")
    return {"resident": resident() / MIB, "keys": keys, "programs": len(compiled)}


def main() -> None:
    import hostmesh.testing

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--collectives", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=600, help="begin no stretch after these")
    options = parser.parse_args()
    print(f"{PROCESSES} processes x {DEVICES}, {THREADS} threads each; after each {STRETCH}:")
    began = time.monotonic()
    for number in range(options.collectives // STRETCH):
        if time.monotonic() - began > options.seconds:
            print(f"time is up after {number * STRETCH} collectives")
            break
        found = hostmesh.testing.run(stretch, PROCESSES, DEVICES, (number,), timeout=400)
        megabytes = " ".join(f"{f['resident']:.0f}" for f in found)
        print(
            f"{(number + 1) * STRETCH:6d} collectives, {time.monotonic() - began:4.0f} s:"
            f" resident {megabytes} MiB, keys in the store {found[0]['keys']:.0f},"
            f" programs compiled {found[0]['programs']:.0f}",
            flush=True,
        )
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
