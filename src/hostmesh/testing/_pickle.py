"""Pickling what cannot be imported, with the places that tracebacks show."""

from __future__ import annotations

import io
import pickle
from types import CodeType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def dumps(value: object) -> bytes:
    """Pickles a value, functions and classes that cannot be imported included.

    cloudpickle drops the file that a function's code is from; here it stays, so that a traceback
    in another process shows the file and its lines. Raises `ModuleNotFoundError` without
    cloudpickle, for what cannot be pickled by name.
    """
    try:
        import cloudpickle  # pyright: ignore[reportMissingTypeStubs]
    except ModuleNotFoundError as error:
        return _by_name(value, error)

    table: Any = cloudpickle.Pickler.dispatch_table

    def reduce(code: CodeType) -> tuple[Any, ...]:
        return _code, (*table[CodeType](code), code.co_filename)

    class Pickler(cloudpickle.Pickler):
        dispatch_table = table.new_child({CodeType: reduce})

    target = io.BytesIO()
    Pickler(target).dump(value)  # pyright: ignore[reportUnknownMemberType]
    return target.getvalue()


def _by_name(value: object, missing: ModuleNotFoundError) -> bytes:
    """By plain pickle: enough for what modules hold, such as the races of `hostmesh bench`."""
    try:
        data = pickle.dumps(value)
    except Exception:
        raise missing from None
    if b"__main__" in data:  # which is another module in the process that reads it
        raise missing
    return data


def _code(make: Callable[..., CodeType], args: tuple[Any, ...], file: str) -> CodeType:
    return make(*args).replace(co_filename=file)
