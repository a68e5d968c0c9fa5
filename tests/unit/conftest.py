"""The bench of the worker's tests."""

import signal
import threading
from collections.abc import Iterator

import pytest

from mayflymq import claims
from tests.unit.worker_bench import Bench


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A fresh store. Failed calls are sent again at once; no invocation leaves anything behind (F3)."""
    monkeypatch.setattr(claims, "PAUSES_S", (0.001, 0.001))
    before = signal.getsignal(signal.SIGTERM)
    yield Bench()
    assert signal.getsignal(signal.SIGTERM) == before
    assert not [thread for thread in threading.enumerate() if thread.name == "mayflymq-heartbeat"]
