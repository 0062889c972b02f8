"""Which line of the program started the first JAX backend: asked when it is too late for a cluster.

JAX announces a backend on a logger before it starts it. A filter on that logger sees where the
call comes from, lets through no more than before, and takes itself off after the first.
"""

from __future__ import annotations

import itertools
import logging
import sys
import traceback
from types import ModuleType

from . import _jax

_ANNOUNCEMENT = "Initializing backend"
_HERE = __name__.partition(".")[0]
_PASSED_THROUGH = {
    *(_HERE, "jax", "jaxlib"),
    *("importlib", "_frozen_importlib", "runpy", "logging", "contextlib", "functools"),
}

_started_at: str | None = None
_stack: list[tuple[str, traceback.FrameSummary]] = []  # modules and frames, outermost first


class _Filter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        global _started_at
        logger = logging.getLogger(record.name)
        parent = logger.parent
        wanted = parent is None or record.levelno >= parent.getEffectiveLevel()
        if str(record.msg).startswith(_ANNOUNCEMENT):
            _started_at = _caller()
            _stack[:] = _whole_stack()
            logger.removeFilter(self)
            logger.setLevel(logging.NOTSET)
        return wanted


def watch() -> None:
    """Remembers, from here on, where the first backend is started from."""
    logger = logging.getLogger(_jax.BACKEND_LOGGER)
    # A level or a handler of its own means that somebody reads this logger already: leave it so.
    if logger.level == logging.NOTSET and not logger.handlers and not _jax.backends_started():
        logger.setLevel(logging.DEBUG)
        logger.addFilter(_Filter())


def description() -> str:
    """What started the backend that is up: the line, or else the modules that may have."""
    if _started_at is not None:
        return f"a JAX backend, which was started at {_started_at}"
    names = ", ".join(_suspects()) or "none that is known"
    return (
        "a JAX backend, which was started before hostmesh was imported; "
        f"modules that use JAX and were imported before, in order: {names}"
    )


def stack() -> list[tuple[str, traceback.FrameSummary]]:
    """Where the first backend was started from: modules and frames, outermost first, if it was seen."""
    return list(_stack)


def _whole_stack() -> list[tuple[str, traceback.FrameSummary]]:
    frames = [(frame, line) for frame, line in traceback.walk_stack(None)][::-1]
    names = [str(frame.f_globals.get("__name__")) for frame, _ in frames]
    return list(zip(names, traceback.StackSummary.extract(iter(frames)), strict=True))


def _caller() -> str:
    frames = [
        (frame, line)
        for frame, line in traceback.walk_stack(None)
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in _PASSED_THROUGH
    ]
    if not frames:
        return "an unknown place"
    inner, *_ = traceback.StackSummary.extract(iter(frames[:1]))
    outer, *_ = traceback.StackSummary.extract(iter(frames[-1:]))
    text = f"{inner.filename}:{inner.lineno} in {inner.name}: {inner.line}"
    if outer.filename != inner.filename:
        text += f" (reached from {outer.filename}:{outer.lineno}: {outer.line})"
    return text


def _suspects() -> list[str]:
    # A module moves to the end of sys.modules when its import is done: hostmesh with its parts.
    before = itertools.takewhile(lambda item: item[0] != _HERE, list(sys.modules.items()))
    using = [name.partition(".")[0] for name, module in before if _uses_jax(module)]
    return [name for name in dict.fromkeys(using) if name not in ("jax", "jaxlib", _HERE)]


def _uses_jax(module: object) -> bool:
    values = list(vars(module).values()) if isinstance(module, ModuleType) else []
    return any(isinstance(v, ModuleType) and v.__name__.partition(".")[0] == "jax" for v in values)
