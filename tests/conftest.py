"""Hypothesis profiles, and the folders of real traces and broken cases."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# HYPOTHESIS_PROFILE=thorough looks at twenty times as many examples.
_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "quick", max_examples=50, deadline=None, suppress_health_check=_SLOW_IS_FINE
)
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


# The terminal that starts the tests, and pytest-xdist, which names a width, change no output.
for _variable in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR"):
    os.environ.pop(_variable, None)


def _folder(variable: str) -> Path:
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"{variable} is not set")
    return Path(value)


@pytest.fixture(scope="session")
def traces_folder() -> Path:
    """Return the folder of real traces."""
    return _folder("TRACELENS_TRACES")


@pytest.fixture(scope="session")
def cases_folder() -> Path:
    """Return the folder of small inputs with known right answers."""
    return _folder("TRACELENS_CASES")
