"""The threads of feeders end before JAX takes down its coordination service, which they may wait in."""

from __future__ import annotations

import atexit
import contextlib
import functools
import time
import weakref

from ._pipeline import Pipeline, threads

JOIN = 5.0  # seconds that they are waited for

running: weakref.WeakSet[Pipeline] = weakref.WeakSet()


def end_with_the_program(pipeline: Pipeline) -> None:
    """Has its threads end with the program, if they are still running then."""
    running.add(pipeline)
    _arrange()


@functools.cache
def _arrange() -> None:
    # When the first feeder begins: so it runs before what was arranged when the program joined its
    # cluster, which waits for the other processes.
    atexit.register(_end_all)


def _end_all() -> None:
    deadline = time.monotonic() + JOIN
    for pipeline in list(running):
        with contextlib.suppress(Exception):
            pipeline.stop("its program ended")
            pipeline.join(deadline - time.monotonic())
    for thread in list(threads):  # whose pipelines are gone already
        thread.join(max(0.0, deadline - time.monotonic()))
