"""What all tests share: how hard hypothesis tries, how long slow tests may take, and helper modules on the path."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

# The fast run is the same every time, so that it fails for a change of the code and for nothing else.
settings.register_profile("fast", max_examples=25, deadline=None, derandomize=True, suppress_health_check=_SLOW_IS_FINE)
settings.register_profile("thorough", max_examples=300, deadline=None, suppress_health_check=_SLOW_IS_FINE)

# All others have the limit in pyproject.toml. On a busy machine, these need several times their minutes.
SLOW_SECONDS = 3600


def pytest_configure(config: pytest.Config) -> None:
    """``make test`` leaves the slow tests out; ``make test-all`` does not, and there hypothesis looks further, too."""
    settings.load_profile("fast" if "not slow" in config.option.markexpr else "thorough")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests have a limit of their own, unless they set one themselves."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))
