"""What all tests share: how hard hypothesis tries, how long slow tests may take, and helper modules on the path."""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, settings

_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

# The fast run is the same every time, so that it fails for a change of the code and for nothing else.
settings.register_profile("fast", max_examples=25, deadline=None, derandomize=True, suppress_health_check=_SLOW_IS_FINE)
settings.register_profile("thorough", max_examples=300, deadline=None, suppress_health_check=_SLOW_IS_FINE)

# pyproject.toml has the limit of all others. On a machine that is busy with other things, these take several times as long.
SLOW_SECONDS = 3600

# A shell that runs a job in the background has it ignore Ctrl-C, and so do all programs that the job starts. Tests that send
# one would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """``make test`` leaves the slow tests out; ``make test-all`` does not, and there hypothesis looks further, too."""
    settings.load_profile("fast" if "not slow" in config.option.markexpr else "thorough")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests have a limit of their own, unless they set one themselves."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))
