"""Listeners hear what they asked for, and none of them can do harm (promise G5)."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mayflymq import events
from mayflymq.errors import ConfigurationError
from mayflymq.events import Event, emit, listen

STARTED = Event(events.STARTED, "q", "one")
FAILED = Event(events.FAILED, "q", "two")


@pytest.fixture(autouse=True)
def _no_listener_stays() -> Iterator[None]:
    yield
    left = list(events._listeners)
    events._listeners.clear()
    assert not left, "the test left a listener behind"


@pytest.mark.promise("G5")
def test_the_events_are_those_of_the_contract() -> None:
    assert events.NAMES == (
        "job:enqueued",
        "job:started",
        "job:completed",
        "job:retrying",
        "job:deferred",
        "job:failed",
        "job:expired",
        "job:cancelled",
        "job:stalled",
        "job:promoted",
    )


def test_a_listener_hears_the_names_it_asked_for_or_all() -> None:
    everything: list[Event] = []
    failures: list[Event] = []
    stop = [listen(everything.append), listen(failures.append, events.FAILED, events.EXPIRED)]
    emit(STARTED)
    emit(FAILED)
    for remove in stop:
        remove()
    emit(FAILED)
    assert everything == [STARTED, FAILED]
    assert failures == [FAILED]


def test_removing_takes_away_one_registration_and_may_be_repeated() -> None:
    heard: list[Event] = []
    first = listen(heard.append)
    second = listen(heard.append)
    first()
    first()
    emit(STARTED)
    second()
    assert heard == [STARTED]


def test_a_name_that_no_event_has_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"'job:done' is no event; .*job:completed"):
        listen(print, "job:done")


def test_what_cannot_be_called_is_no_listener() -> None:
    wrong: Any = "job:failed"
    with pytest.raises(ConfigurationError, match=r"a listener is a function .* not 'job:failed'"):
        listen(wrong)
    assert not events.heard()


@pytest.mark.promise("G5")
def test_a_listener_that_raises_is_logged_and_the_next_one_hears(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Event] = []

    def broken(event: Event) -> None:
        raise ValueError("the listener's own fault")

    stop = [listen(broken), listen(heard.append)]
    with caplog.at_level(logging.ERROR, logger="mayflymq"):
        emit(STARTED)
    for remove in stop:
        remove()
    assert heard == [STARTED]
    [record] = caplog.records
    assert record.exc_info
    assert isinstance(record.exc_info[1], ValueError)
    assert (record.event, record.queue, record.job_id) == (events.STARTED, "q", "one")  # type: ignore[attr-defined]


@pytest.mark.parametrize("stopper", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_passes_a_listener(stopper: type[BaseException]) -> None:
    def end(event: Event) -> None:
        raise stopper

    stop = listen(end)
    with pytest.raises(stopper):
        emit(STARTED)
    stop()


def test_a_listener_may_listen_and_stop_while_it_is_called() -> None:
    heard: list[str] = []
    stop: list[Callable[[], None]] = []

    def once(event: Event) -> None:
        heard.append("once")
        stop[0]()
        stop.append(listen(lambda event: heard.append("late")))

    stop.append(listen(once))
    stop.append(listen(lambda event: heard.append("always")))
    emit(STARTED)
    assert heard == ["once", "always"], "each that listened when the event came hears it, and no other"
    emit(FAILED)
    for remove in stop:
        remove()
    assert heard == ["once", "always", "always", "late"]
