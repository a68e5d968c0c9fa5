"""The state machine's table, and the decisions that need no store."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mayflymq import lifecycle, model
from mayflymq.errors import ConfigurationError
from mayflymq.lifecycle import TRANSITIONS, Event, after_error, backoff_delay_ms, entry_state, is_expired
from mayflymq.model import MAX_TIME, TERMINAL, Backoff, Job, JobError, ParentPolicy, State

ERROR = JobError("ValueError", "no")
JOB = Job(
    id="one",
    queue="default",
    task="send",
    payload=b"{}",
    state=State.ACTIVE,
    priority=5,
    created_at=1_000_000,
    run_at=None,
    ttl_ms=None,
    timeout_ms=None,
    max_retries=3,
    backoff=Backoff.fixed(10),
    depends_on=(),
    on_parent_failure=ParentPolicy.FAIL,
    dedup=None,
)


# The table


def test_only_an_operator_moves_a_job_that_has_ended() -> None:
    leaving = {
        (state, event) for state, event in TRANSITIONS if state in TERMINAL and event is not Event.REMOVE
    }
    assert leaving == {(State.FAILED, Event.REPLAY), (State.EXPIRED, Event.REPLAY)}


def test_only_a_claim_leads_to_active() -> None:
    into = {(state, event) for (state, event), to in TRANSITIONS.items() if State.ACTIVE in to}
    assert into == {(State.WAITING, Event.CLAIM), (State.ACTIVE, Event.CANCEL)}


def test_every_state_can_be_reached_and_every_event_happens() -> None:
    assert {state for to in TRANSITIONS.values() for state in to} == {*State, None}
    assert {event for _, event in TRANSITIONS} == set(Event)


OUTCOMES: list[model.Outcome] = [
    model.Complete(),
    model.Retry(0, ERROR),
    model.Defer(0),
    model.Fail(ERROR),
    model.Expire(),
    model.Cancel(),
    model.Release(),
]


def test_each_outcome_is_an_event_of_its_own_that_active_allows() -> None:
    assert {type(outcome) for outcome in OUTCOMES} == set(model.Outcome.__args__)
    events = [lifecycle.event_of(outcome) for outcome in OUTCOMES]
    assert len(set(events)) == len(OUTCOMES)
    for outcome, event in zip(OUTCOMES, events, strict=True):
        assert event.value == type(outcome).__name__.lower()
        assert (State.ACTIVE, event) in TRANSITIONS


# Backoff

BACKOFFS = st.builds(
    Backoff,
    st.lists(st.integers(0, MAX_TIME), min_size=1, max_size=5).map(tuple),
    st.floats(1, 1000) | st.integers(1, 1000),
    st.integers(0, MAX_TIME),
    st.floats(0, 1) | st.sampled_from([0, 1]),
)


@given(BACKOFFS, st.integers(1, 2**31), st.floats(0, 1))
@example(Backoff((1,), factor=2, cap_ms=MAX_TIME), 2**31, 0.0)
@example(Backoff((MAX_TIME,), factor=1000.0, cap_ms=MAX_TIME), 103, 0.0)
@example(Backoff((0,), factor=1000.0, cap_ms=MAX_TIME), 2**31, 0.0)
@example(Backoff((0,), factor=1000.0, cap_ms=0), 104, 1.0)
def test_a_backoff_is_never_negative_nor_above_its_cap(
    backoff: Backoff, failures: int, chance: float
) -> None:
    delay = backoff_delay_ms(backoff, failures, chance)
    assert type(delay) is int
    assert 0 <= delay <= backoff.cap_ms


@given(BACKOFFS, st.integers(1, 2**31), st.floats(0, 1))
def test_jitter_only_takes_off_its_share(backoff: Backoff, failures: int, chance: float) -> None:
    full = backoff_delay_ms(backoff, failures, 0.0)
    assert full >= backoff_delay_ms(backoff, failures, chance) >= int(full * (1 - backoff.jitter)) - 1


@given(st.integers(1, 2**31))
def test_a_zero_delay_stays_zero(failures: int) -> None:
    assert backoff_delay_ms(Backoff((0,), factor=1000.0), failures, 0.0) == 0


def delays(backoff: Backoff, count: int = 5, chance: float = 0.0) -> list[int]:
    return [backoff_delay_ms(backoff, failures, chance) for failures in range(1, count + 1)]


def test_the_three_kinds_of_backoff() -> None:
    assert delays(Backoff.fixed(1.5)) == [1500] * 5
    assert delays(Backoff.exponential(1, cap=10, factor=3)) == [1000, 3000, 9000, 10_000, 10_000]
    assert delays(Backoff.steps(1, 5, 2)) == [1000, 5000, 2000, 2000, 2000]
    assert delays(Backoff.exponential(jitter=0.5), 3, chance=1.0) == [500, 1000, 2000]


# Expiry


@pytest.mark.promise("E1")
def test_the_time_to_live_counts_from_creation_or_the_last_manual_retry() -> None:
    job = replace(JOB, ttl_ms=5000)
    assert not is_expired(job, 1_004_999)
    assert is_expired(job, 1_005_000)
    retried = replace(job, retried_at=2_000_000)
    assert not is_expired(retried, 2_004_999)
    assert is_expired(retried, 2_005_000)


def test_without_a_time_to_live_nothing_expires() -> None:
    assert not is_expired(JOB, MAX_TIME)


# After an error


def test_a_failed_handler_is_retried_until_no_retry_is_left() -> None:
    outcomes = [after_error(replace(JOB, failures=failures), ERROR, 0.0) for failures in range(5)]
    assert outcomes == [model.Retry(10_000, ERROR)] * 3 + [model.Fail(ERROR)] * 2


def test_stalls_and_deliveries_use_up_no_retry() -> None:
    assert after_error(replace(JOB, stalls=9, deliveries=9), ERROR, 0.0) == model.Retry(10_000, ERROR)


def test_a_delay_that_the_task_asked_for_stands_and_uses_up_a_retry() -> None:
    assert after_error(JOB, ERROR, 0.0, delay_ms=0) == model.Retry(0, ERROR)
    assert after_error(replace(JOB, failures=3), ERROR, 0.0, delay_ms=7) == model.Fail(ERROR)


def test_no_retries_means_failed_at_once() -> None:
    assert after_error(replace(JOB, max_retries=0), ERROR, 0.0) == model.Fail(ERROR)


@pytest.mark.parametrize(
    ("due", "unfinished_parents", "state"),
    [
        (True, False, State.WAITING),
        (True, True, State.BLOCKED),
        (False, False, State.DELAYED),
        (False, True, State.DELAYED),
    ],
)
def test_where_a_job_enters(due: bool, unfinished_parents: bool, state: State) -> None:
    assert entry_state(due=due, unfinished_parents=unfinished_parents) is state
    assert state in TRANSITIONS[None, Event.ENQUEUE]


def test_the_errors_that_no_handler_raised_say_who_is_to_blame() -> None:
    assert "parent p1 ended cancelled" in lifecycle.parent_failed("p1", State.CANCELLED).message
    assert "stalled 4 times" in lifecycle.stalled_out(4).message


# Bad settings


@pytest.mark.parametrize(
    "make",
    [
        lambda: Backoff(()),
        lambda: Backoff([1000]),  # type: ignore[arg-type]
        lambda: Backoff((1,) * 101),
        lambda: Backoff((-1,)),
        lambda: Backoff((1.5,)),  # type: ignore[arg-type]
        lambda: Backoff((True,)),
        lambda: Backoff((MAX_TIME + 1,)),
        lambda: Backoff((10**5000,)),
        lambda: Backoff((1,), cap_ms=-1),
        lambda: Backoff((1,), factor=0.5),
        lambda: Backoff((1,), factor=float("nan")),
        lambda: Backoff((1,), factor=float("inf")),
        lambda: Backoff((1,), factor=True),
        lambda: Backoff((1,), jitter=1.5),
        lambda: Backoff((1,), jitter=-0.1),
        lambda: Backoff((1,), jitter="0"),  # type: ignore[arg-type]
        lambda: Backoff.fixed(-1),
        lambda: Backoff.fixed(float("nan")),
        lambda: Backoff.fixed("5"),  # type: ignore[arg-type]
        lambda: Backoff.fixed(True),
        lambda: Backoff.exponential(cap=float("inf")),
        lambda: Backoff.exponential(-1),
        lambda: Backoff.steps(),
        lambda: Backoff.steps(1, -1),
    ],
)
def test_a_backoff_that_cannot_work_is_refused(make: object) -> None:
    with pytest.raises(ConfigurationError, match="a backoff"):
        make()  # type: ignore[operator]
