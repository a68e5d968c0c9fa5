"""What the whole suite shares: the promise marker, and a process without the developer's own settings."""

import os
import sys

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "promise(*ids, backends=None): the promises that the test proves (tests/promises.toml); "
        "backends: the columns it counts for, where its parameters do not say so",
    )
    # A backend URL in the developer's shell must not decide where the tests write.
    for name in [name for name in os.environ if name.startswith("MAYFLYMQ_")]:
        del os.environ[name]


@pytest.fixture(autouse=True)
def _no_doorbell_of_another_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that connected the process to a doorbell leaves none behind."""
    if queue := sys.modules.get("mayflymq.queue"):
        monkeypatch.setattr(queue, "_doorbell", None)
