"""Errors in a program of a user: how a traceback names them."""

from __future__ import annotations

import pickle
import traceback

import pytest

import hostmesh
from hostmesh import multihost_utils, testing

# By where each is public; what several modules have is hostmesh's.
PUBLIC = {
    error: f"{module.__name__}.{name}"
    for module in (testing, multihost_utils, hostmesh)
    for name in dir(module)
    if isinstance(error := getattr(module, name), type) and issubclass(error, Exception)
}


@pytest.mark.parametrize("error", PUBLIC)
def test_a_traceback_names_an_error_as_programs_do(error: type[Exception]) -> None:
    assert traceback.format_exception_only(error("lost")) == [f"{PUBLIC[error]}: lost\n"]


@pytest.mark.parametrize("error", PUBLIC)
def test_an_error_travels_as_what_it_is(error: type[Exception]) -> None:
    received = pickle.loads(pickle.dumps(error("lost")))
    assert (type(received), str(received)) == (error, "lost")
