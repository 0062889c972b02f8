"""Collectives from several threads at once: each pairs with its own channel's on all processes."""

from __future__ import annotations

import os
import random
import threading
import time
import traceback

import pytest

# A thread's; HOSTMESH_TEST_ROUNDS=2500 makes it 10,000 in all, in about five minutes.
ROUNDS = int(os.environ.get("HOSTMESH_TEST_ROUNDS", "75"))
THREADS = 4


@pytest.mark.private_names
@pytest.mark.multiprocess(processes=4, devices=2, timeout=60 + ROUNDS // 5)
def test_threads_never_pair_with_the_wrong_partner() -> None:
    import jax
    import numpy as np

    import hostmesh as hm
    from hostmesh._packing import INLINE

    me, count = jax.process_index(), jax.process_count()
    errors: list[str] = []
    large = [0] * THREADS

    def value(thread: int, number: int, process: int, size: int) -> np.ndarray:
        """Shapes and dtypes are those of the other threads too: only values tell them apart."""
        return np.full(size, (thread * ROUNDS + number) * count + process, np.int64)

    def work(thread: int) -> None:
        together = random.Random(thread)  # the same on all processes
        alone = random.Random(f"{thread} {me}")  # when this process comes
        with hm.channel(f"thread {thread}"):
            for number in range(ROUNDS):
                size = together.choice((0, 1, INLINE // 8, INLINE // 8 + 1, 4096))
                source, kind = together.randrange(count), together.randrange(3)
                large[thread] += size * 8 > INLINE
                if alone.random() < 0.3:
                    time.sleep(alone.random() * 0.003)
                mine = value(thread, number, me, size)
                if kind == 0:
                    got = hm.broadcast(mine if me == source else None, source=source)
                    expected = value(thread, number, source, size)
                else:
                    whole = np.stack([value(thread, number, p, size) for p in range(count)])
                    got = hm.allgather(mine) if kind == 1 else hm.gather(mine, to=source)
                    expected = whole if kind == 1 or me == source else None
                np.testing.assert_equal(got, expected, f"thread {thread}, round {number}")

    def guarded(thread: int) -> None:
        try:
            work(thread)
        except BaseException:
            errors.append(traceback.format_exc())

    threads = [threading.Thread(target=guarded, args=(t,), daemon=True) for t in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, "\n".join(errors)
    assert all(ROUNDS // 5 < n < ROUNDS * 3 // 5 for n in large)  # by programs, and without
