"""The codec gives back what it was given or refuses it, and no error text is too much for it."""

import json
import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mayflymq import codec
from mayflymq.errors import CorruptRecord, InvalidJob, PayloadTooLarge
from mayflymq.model import MAX_TIME, Backoff, JobError

ANY_TEXT = st.text(st.characters(exclude_categories=()))
"""Also NUL, lone surrogates and two of them in a row."""


def whole(text: str) -> bool:
    return not codec.SPLIT_CHARACTER.search(text)


TEXT = ANY_TEXT.filter(whole)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


def same(one: Any, other: Any) -> bool:
    """Equal, and of equal types all the way down: 1, 1.0 and True are not the same."""
    return repr(one) == repr(other) and one == other


@given(
    st.lists(JSON, max_size=4),
    st.dictionaries(TEXT, JSON, max_size=4),
    st.dictionaries(TEXT, TEXT, max_size=4),
)
def test_a_payload_comes_back_as_it_went_in(
    args: list[object], kwargs: dict[str, object], meta: dict[str, str]
) -> None:
    data = codec.encode_payload(tuple(args), kwargs, meta)
    assert data.isascii()
    assert b"\0" not in data
    assert same(codec.decode_payload(data), (args, kwargs, meta))


@given(JSON)
def test_a_result_comes_back_as_it_went_in(value: object) -> None:
    assert same(codec.decode(codec.encode("the result", value, 10_000_000)), value)


@given(ANY_TEXT)
def test_text_is_given_back_or_refused(text: str) -> None:
    try:
        data = codec.encode("the result", text, 10_000_000)
    except InvalidJob:
        assert not whole(text)
    else:
        assert codec.decode(data) == text


LOOP: list[object] = []
LOOP.append(LOOP)

REFUSED = [
    (b"x", "bytes"),
    ((1, 2), "tuple"),
    ({1}, "set"),
    (datetime(2030, 1, 1, tzinfo=UTC), "datetime"),
    (Decimal(1), "Decimal"),
    (object(), "object"),
    (type("Text", (str,), {})("x"), "Text"),
    (math.nan, "nan"),
    (-math.inf, "-inf"),
    ("\ud83d\ude00", "two surrogates"),
    ({1: "x"}, "key 1 of type int"),
    ({None: "x"}, "key None"),
    ({"\ud83d\ude00": 1}, "two surrogates"),
    (10**5000, "digits"),
    (LOOP, "contains itself"),
]


@pytest.mark.parametrize(("value", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_what_json_does_not_give_back_is_refused(value: object, says: str) -> None:
    with pytest.raises(InvalidJob, match=says):
        codec.encode_payload((value,), {}, {})
    with pytest.raises(InvalidJob, match=says):
        codec.encode("the result", value, 10_000_000)


def test_the_error_names_the_path() -> None:
    with pytest.raises(InvalidJob, match=r"^args\[1\]\['to'\]\[2\] is of type bytes"):
        codec.encode_payload((0, {"to": ["a", "b", b"c"]}), {}, {})
    with pytest.raises(InvalidJob, match=r"^kwargs\['at'\] is nan"):
        codec.encode_payload((), {"at": math.nan}, {})
    with pytest.raises(InvalidJob, match=r"^kwargs has the key 7 of type int"):
        codec.encode_payload((), {7: 1}, {})  # type: ignore[dict-item]
    with pytest.raises(InvalidJob, match="meta maps str to str; 'tenant' does not"):
        codec.encode_payload((), {}, {"tenant": 7})  # type: ignore[dict-item]
    with pytest.raises(InvalidJob, match=r"^meta\['tenant'\] holds two surrogates"):
        codec.encode_payload((), {}, {"tenant": "\ud83d\ude00"})


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_arguments_may_be_nested_to_the_limit_and_no_deeper() -> None:
    deep = nested(codec.MAX_DEPTH)
    assert codec.decode_payload(codec.encode_payload((deep,), {}, {}))[0] == [deep]
    with pytest.raises(InvalidJob, match="nested more than 100 deep"):
        codec.encode_payload(([deep],), {}, {})


def test_the_size_limit_is_exact_and_the_error_says_both_sizes() -> None:
    size = len(codec.encode_payload(("x" * 1000,), {}, {}))
    assert codec.encode_payload(("x" * 1000,), {}, {}, size)
    with pytest.raises(
        PayloadTooLarge, match=rf"the payload takes {size:,} bytes as JSON, the limit is {size - 1:,}"
    ):
        codec.encode_payload(("x" * 1000,), {}, {}, size - 1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b"7",
        b"{}",
        b'{"args":{},"kwargs":{},"meta":{}}',
        b'{"args":[],"kwargs":[],"meta":{}}',
    ],
)
def test_a_payload_that_nobody_wrote_is_a_corrupt_record(data: bytes) -> None:
    with pytest.raises(CorruptRecord):
        codec.decode_payload(data)


@pytest.mark.parametrize("data", [b"", b"7", b"null", b'["a","b"]'])
def test_an_error_that_nobody_wrote_is_a_corrupt_record(data: bytes) -> None:
    with pytest.raises(CorruptRecord):
        codec.decode_error(data)


@pytest.mark.parametrize(
    "data", [b"", b"7", b"[]", b"[[],1,1,0]", b"[[-1],1,1,0]", b"[7,1,1,0]", b'[["x"],1,1,0]']
)
def test_a_backoff_that_nobody_wrote_is_a_corrupt_record(data: bytes) -> None:
    with pytest.raises(CorruptRecord):
        codec.decode_backoff(data)


@given(
    st.lists(st.integers(0, MAX_TIME), min_size=1, max_size=5),
    st.floats(1, 1000) | st.integers(1, 1000),
    st.integers(0, MAX_TIME),
    st.floats(0, 1),
)
def test_a_backoff_comes_back_as_it_went_in(
    delays: list[int], factor: float, cap: int, jitter: float
) -> None:
    backoff = Backoff(tuple(delays), factor, cap, jitter)
    assert same(codec.decode_backoff(codec.encode_backoff(backoff)), backoff)


# Errors


def assert_stored(error: JobError) -> None:
    stored = codec.encode_error(error)
    assert len(stored) <= codec.MAX_ERROR_BYTES
    assert stored.isascii()
    # A pair of surrogates may be joined; what is stored is stable all the same.
    assert codec.encode_error(codec.decode_error(stored)) == stored


LONG = st.builds(lambda text, times: text * times, ANY_TEXT, st.sampled_from([1, 100, 5000]))


@given(LONG, LONG, LONG)
def test_an_error_is_clipped_to_what_may_be_stored(kind: str, message: str, traceback: str) -> None:
    error = codec.clipped(kind, message, traceback)
    assert_stored(error)
    # Each text has room of its own, counted as it is stored: a character takes 1 to 12 bytes.
    if (
        len(json.dumps(kind)) <= 200
        and len(json.dumps(message)) <= 4000
        and len(json.dumps(traceback)) <= 12_000
    ):
        assert error == JobError(kind, message, traceback)


@pytest.mark.parametrize("character", ["x", "\0", "\ud800", "\U0001f600", '"', "\n", "é"])
def test_eight_megabytes_of_anything_are_clipped(character: str) -> None:
    huge = character * (8 * 1024 * 1024)
    error = codec.clipped(huge, huge, huge)
    assert_stored(error)
    assert error.message.endswith(codec.CUT)
    assert error.traceback.startswith(codec.CUT)
    assert error.message.removesuffix(codec.CUT) in huge[:5000]
    assert len(json.dumps(error.traceback)) > codec.MAX_ERROR_BYTES // 2


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class Exits(Exception):
    def __str__(self) -> str:
        raise SystemExit


def test_an_ordinary_error_is_told_whole() -> None:
    error = codec.describe_error(raised(KeyError("seven")))
    assert (error.type, error.message) == ("KeyError", "'seven'")
    assert error.traceback.startswith("Traceback (most recent call last):")
    assert error.traceback.endswith("KeyError: 'seven'\n")
    assert "in raised" in error.traceback


def test_a_message_of_megabytes_leaves_room_for_the_frames() -> None:
    error = codec.describe_error(raised(ValueError("x" * (8 * 1024 * 1024))))
    assert_stored(error)
    assert error.message.startswith("xxx")
    assert error.message.endswith(codec.CUT)
    assert "in raised" in error.traceback


@pytest.mark.parametrize("error", [Mute(), Exits()])
def test_an_error_whose_str_raises_is_told_all_the_same(error: Exception) -> None:
    told = codec.describe_error(raised(error))
    assert told.type == type(error).__name__
    assert "str() raised" in told.message
    assert_stored(told)


def test_a_recursion_error_is_told() -> None:
    def forever() -> None:
        forever()

    with pytest.raises(RecursionError) as caught:
        forever()
    told = codec.describe_error(caught.value)
    assert told.type == "RecursionError"
    assert "in forever" in told.traceback
    assert_stored(told)


def test_a_group_and_a_chain_are_told() -> None:
    group = ExceptionGroup("many", [ValueError("one"), ExceptionGroup("more", [KeyError("two")])])
    group.__cause__ = raised(OSError("why"))
    told = codec.describe_error(raised(group))
    assert told.type == "ExceptionGroup"
    for part in ("ValueError: one", "KeyError: 'two'", "OSError: why"):
        assert part in told.traceback
    assert_stored(told)


@pytest.mark.parametrize("message", ["\0", "\ud800", "a\0b\udfff"])
def test_odd_characters_in_a_message_survive(message: str) -> None:
    told = codec.describe_error(raised(ValueError(message)))
    assert told.message == message
    assert codec.decode_error(codec.encode_error(told)) == told
