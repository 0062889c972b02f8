"""Fixtures for all tests."""

import os

import pytest

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def _names_as_asked_for(request: pytest.FixtureRequest) -> None:
    """A test of `apis.both` really runs on the names that it says."""
    if "public" in request.fixturenames:
        from hostmesh import _jax

        everywhere = os.environ.get("HOSTMESH_PUBLIC_API", "0") not in ("", "0")
        assert (request.getfixturevalue("public") or everywhere) == _jax.PUBLIC_API
