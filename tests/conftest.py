"""What every test gets: no network but loopback, and the public fixtures."""

from __future__ import annotations

import pytest
from hypothesis import settings

__all__ = ["offline"]

pytest_plugins = ["agentloop.testing.fixtures"]

# A shared machine may be slow for a moment; the timeout of each test bounds what may hang.
settings.register_profile("suite", deadline=None, max_examples=100)
settings.load_profile("suite")


@pytest.fixture(autouse=True)
def offline(no_network: None) -> None:
    """Hold every test to loopback."""
