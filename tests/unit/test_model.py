"""Values that cannot be meant are refused when they are made, with an error that names them."""

import math
import unicodedata
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mayflymq.errors import InvalidJob, redacted
from mayflymq.model import (
    MAX_BATCH,
    MAX_TIME,
    Beat,
    Claim,
    ClaimRequest,
    Dedup,
    DedupMode,
    Defer,
    JobError,
    NewJob,
    Retry,
    check_queue,
    check_text,
    duration_ms,
    shown,
)

WIDE = 2**31


def new(**changes: Any) -> NewJob:
    return NewJob(**{"id": "one", "queue": "default", "task": "send", "payload": b"{}", **changes})


@pytest.mark.promise("O2")
@pytest.mark.parametrize("priority", [-WIDE, -1, 0, 5, WIDE - 1])
def test_the_whole_range_of_priorities_is_taken(priority: int) -> None:
    assert new(priority=priority).priority == priority


NOT_MEANT = [
    ("priority", -WIDE - 1),
    ("priority", WIDE),
    ("priority", 10**5000),
    ("priority", True),
    ("priority", 5.0),
    ("priority", "5"),
    ("priority", None),
    ("priority", math.nan),
    ("delay_ms", -1),
    ("delay_ms", 1.5),
    ("delay_ms", False),
    ("delay_ms", MAX_TIME + 1),
    ("run_at", -1),
    ("run_at", MAX_TIME + 1),
    ("run_at", 1.5),
    ("ttl_ms", 0),
    ("ttl_ms", -5),
    ("ttl_ms", True),
    ("timeout_ms", 0),
    ("timeout_ms", "1"),
    ("max_retries", -1),
    ("max_retries", True),
    ("max_retries", 1.0),
    ("backoff", 5),
    ("backoff", None),
    ("payload", "{}"),
    ("depends_on", "abc"),
    ("depends_on", ["a"]),
    ("on_parent_failure", "fail"),
    ("dedup", "key"),
]


@pytest.mark.parametrize(("name", "value"), NOT_MEANT, ids=lambda part: shown(part)[:20])
def test_a_value_that_cannot_be_meant_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidJob, match=name):
        new(**{name: value})


def test_a_delay_and_a_time_exclude_each_other() -> None:
    with pytest.raises(InvalidJob, match="not both"):
        new(delay_ms=1, run_at=5)
    assert new(delay_ms=0, run_at=5).run_at == 5


def test_parents_are_bounded_and_named() -> None:
    assert len(new(depends_on=("p",) * MAX_BATCH).depends_on) == MAX_BATCH
    with pytest.raises(InvalidJob, match=f"at most {MAX_BATCH}"):
        new(depends_on=("p",) * (MAX_BATCH + 1))
    with pytest.raises(InvalidJob, match="a parent's id"):
        new(depends_on=("p", ""))


# Text

IDS = ["a", "x" * 255, "é", "作業", "\U0001f600", "a b/c:d{e}", "'; drop table", "-", "a.dlq"]
NOT_IDS: list[object] = [
    "",
    "x" * 256,
    "a\0b",
    "a\nb",
    "\x7f",
    "\x85",
    "\ud800",
    "\ud83d\ude00",
    7,
    None,
    b"a",
]


@pytest.mark.parametrize("text", IDS, ids=shown)
def test_what_can_be_an_id(text: str) -> None:
    assert new(id=text).id == text


@pytest.mark.parametrize("text", NOT_IDS, ids=shown)
def test_what_cannot_be_an_id(text: object) -> None:
    for name, means in (("id", "a job id"), ("task", "a task's name")):
        with pytest.raises(InvalidJob, match=means):
            new(**{name: text})


def unfit(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs")


@given(st.text(st.characters(exclude_categories=()), max_size=300))
def test_an_accepted_text_is_utf8_without_control_characters(text: str) -> None:
    try:
        check_text("an id", text)
    except InvalidJob:
        assert len(text) in (0, *range(256, 301)) or any(map(unfit, text))
    else:
        assert 1 <= len(text) <= 255
        assert text.encode("utf-8").decode("utf-8") == text
        assert not any(map(unfit, text))


@pytest.mark.parametrize("name", ["a", "0", "A.b_c-d", "x" * 128, "a.dlq.b", "dlq"])
def test_what_can_name_a_queue(name: str) -> None:
    assert check_queue(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x" * 129,
        ".a",
        "-a",
        "_a",
        "a b",
        "a/b",
        "a:b",
        "{a}",
        "é",
        "a.dlq",
        ".dlq",
        "a\n",
        "٣",
        7,
        None,
        True,
    ],
    ids=shown,
)
def test_what_cannot_name_a_queue(name: object) -> None:
    with pytest.raises(InvalidJob, match="queue"):
        check_queue(name)


# Durations


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (0, 0),
        (1, 1000),
        (0.07, 70),
        (1.001, 1001),
        (1e-9, 1),
        (timedelta(seconds=1.5), 1500),
        (timedelta(microseconds=1), 1),
        (-3, -3000),
        (timedelta(days=-1), -86_400_000),
        (1e300, MAX_TIME),
        (-1e300, -MAX_TIME),
        (10**5000, MAX_TIME),
        (timedelta.max, MAX_TIME),
    ],
    ids=shown,
)
def test_a_duration_is_seconds_or_a_timedelta(value: object, ms: int) -> None:
    assert duration_ms("delay", value) == ms


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, "5", b"5", None, True, False, Decimal(5), 5j, [5]], ids=shown
)
def test_a_duration_that_cannot_be_meant_is_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidJob, match=r"^delay must be"):
        duration_ms("delay", value)


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers())
def test_every_finite_duration_fits_every_store(value: float) -> None:
    ms = duration_ms("delay", value)
    assert type(ms) is int
    assert -MAX_TIME <= ms <= MAX_TIME
    assert (ms > 0) == (value > 0)


# The rest of the protocol's words


def test_a_claim_request_is_checked() -> None:
    good: dict[str, Any] = {"queue": "q", "limit": 1, "token": "t", "worker": "w", "stale_after_ms": 1}
    assert ClaimRequest(**good).limit == 1
    for name, value in (
        ("queue", "a b"),
        ("limit", 0),
        ("limit", MAX_BATCH + 1),
        ("token", ""),
        ("worker", "\0"),
        ("stale_after_ms", 0),
        ("stale_after_ms", True),
    ):
        with pytest.raises(InvalidJob):
            ClaimRequest(**{**good, name: value})


@pytest.mark.parametrize("progress", [-0.1, 1.1, math.nan, math.inf, True, "1", b""])
def test_progress_is_from_0_to_1(progress: Any) -> None:
    claim = Claim("q", "one", "token")
    assert Beat(claim, 1, 0.0).progress == 0.0
    assert Beat(claim, 1, 1.0).progress == 1.0
    with pytest.raises(InvalidJob, match="progress"):
        Beat(claim, 1, progress)


@pytest.mark.parametrize("delay_ms", [-1, MAX_TIME + 1, 0.5, True])
def test_the_delay_of_an_outcome_is_checked(delay_ms: Any) -> None:
    with pytest.raises(InvalidJob, match="delay_ms"):
        Retry(delay_ms, JobError("E", "m"))
    with pytest.raises(InvalidJob, match="delay_ms"):
        Defer(delay_ms)


def test_a_deduplication_key_is_checked() -> None:
    assert Dedup("k", DedupMode.THROTTLE, window_ms=5).window_ms == 5
    wrong: tuple[dict[str, Any], ...] = (
        {"key": ""},
        {"key": "k", "mode": "simple"},
        {"key": "k", "window_ms": 5},
        {"key": "k", "mode": DedupMode.THROTTLE},
        {"key": "k", "mode": DedupMode.THROTTLE, "window_ms": -1},
    )
    for bad in wrong:
        with pytest.raises(InvalidJob):
            Dedup(**bad)
    with pytest.raises(InvalidJob, match="debounce needs a delay"):
        new(dedup=Dedup("k", DedupMode.DEBOUNCE))
    assert new(dedup=Dedup("k", DedupMode.DEBOUNCE), delay_ms=1).delay_ms == 1


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "value", [Unshowable(), 10**5000, "\0" * 1000, "\ud800"], ids=["raises", "digits", "long", "odd"]
)
def test_every_value_can_be_shown_in_an_error(value: object) -> None:
    assert shown(value).isascii()
    assert 0 < len(shown(value)) <= 80


# Passwords


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:S3CRET@host:6379/0",
        "redis://:S3CRET@host",
        "postgresql://user:S3CRET/x?S3CRET#S3CRET@S3CRET@host/db",
        "amqp://user:pw@host/?store=redis://u:S3CRET@h2",
        "amqp://host/?store=redis%3A%2F%2Fu%3AS3CRET%40h2",
        "postgresql://host/db?password=S3CRET",
        "mongodb://host/?a=b&S3CRET=x@y",
        "//user:S3CRET@host",
        "user:S3CRET@host",
        "redis:user:S3CRET@host",
    ],
)
def test_a_password_never_comes_out_of_a_url(url: str) -> None:
    assert "S3CRET" not in redacted(url)
    assert "***" in redacted(url)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///mayflymq.db",
        "memory://x",
        "redis://host:6379/0",
        "redis://user@host",
        "secretsmanager:arn:aws:x",
        "",
    ],
)
def test_a_url_without_a_secret_is_shown_whole(url: str) -> None:
    assert redacted(url) == url
    assert (
        redacted("postgresql://u:p@host:5432/db?sslmode=x") == "postgresql://u:***@host:5432/db?sslmode=***"
    )
