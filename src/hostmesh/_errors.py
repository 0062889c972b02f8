"""The error tree, and the one way in which a message is put together.

    HostmeshError
     ├── SpecError        (ValueError)      a mesh, spec or option that cannot be
     ├── ShapeError       (ValueError)      a shape, dtype or value that does not fit the layout
     ├── DivergenceError  (AssertionError)  processes that should agree do not
     ├── StragglerError   (TimeoutError)    a process did not come in time
     ├── ClusterError     (RuntimeError)    start-up, or a process of a cluster that failed
     ├── FeedError        (RuntimeError)    a data source failed, on this or another process
     └── StorageError     (OSError)         a file that cannot be read or written, or is malformed

Every message has four parts, so that a reader who sees only the message can act on it: where
(leaf and process), what was given, the rule with its numbers, and what to do.
"""

from __future__ import annotations

from typing import TypeVar


class HostmeshError(Exception):
    """The root of all errors that hostmesh raises on its own account."""


class SpecError(HostmeshError, ValueError):
    """A mesh, partition spec or option that cannot be what was meant."""


class ShapeError(HostmeshError, ValueError):
    """A shape, dtype or value that does not fit the layout that the spec asks for."""


class DivergenceError(HostmeshError, AssertionError):
    """Processes that should have passed or called the same did not."""


class StragglerError(HostmeshError, TimeoutError):
    """One or more processes did not arrive within the time-out."""


class ClusterError(HostmeshError, RuntimeError):
    """The distributed runtime could not be started, or a process of it failed."""


class FeedError(HostmeshError, RuntimeError):
    """A data source failed or ended, on this process or on another."""


class StorageError(HostmeshError, OSError):
    """A file could not be read or written, or is not what its format says."""


# A traceback names an error as a program does that catches it.
for _kind in (HostmeshError, *HostmeshError.__subclasses__()):
    _kind.__module__ = "hostmesh"


ErrorT = TypeVar("ErrorT", bound=HostmeshError)


_HANG = " " * len("  given: ")


def build(kind: type[ErrorT], *, where: str, given: str, rule: str, advice: str) -> ErrorT:
    """Returns an error of `kind` whose message has the four parts, each from a line of its own on.

    >>> print(
    ...     build(ShapeError, where="leaf ['x']", given="5 rows", rule="5 % 2 != 0", advice="pad")
    ... )
    leaf ['x']
      given: 5 rows
      rule:  5 % 2 != 0
      do:    pad
    """
    # Further lines, as of another error that is told of, hang under the part that they belong to.
    parts = (part.replace("\n", f"\n{_HANG}") for part in (given, rule, advice))
    return kind("{}\n  given: {}\n  rule:  {}\n  do:    {}".format(where, *parts))


def at(error: ErrorT, where: str) -> ErrorT:
    """Returns `error` with its first part replaced: a planning error, say, moved to its leaf.

    >>> error = build(ShapeError, where="plan", given="5 rows", rule="5 % 2 != 0", advice="pad")
    >>> str(at(error, "leaf ['x']")).splitlines()[0]
    "leaf ['x']"
    """
    _, _, rest = str(error).partition("\n")
    return type(error)(f"{where}\n{rest}")
