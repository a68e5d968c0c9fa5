"""JSON bytes in and out: strict, ASCII-escaped, size-limited. Nothing is ever pickled.

What does not come back as it went in is refused with the path of the offending value, so that a surprise
happens to the producer at once and not to a worker later. The bytes are opaque to every backend.
"""

from __future__ import annotations

import json
import math
import re
import traceback as traceback_module
from functools import lru_cache

from .errors import ConfigurationError, CorruptRecord, InvalidJob, PayloadTooLarge
from .model import Backoff, JobError, shown

MAX_DEPTH = 100
MAX_PAYLOAD_BYTES = 1024 * 1024
MAX_RESULT_BYTES = 1024 * 1024
MAX_ERROR_BYTES = 16 * 1024
CUT = "... (cut)"
SPLIT_CHARACTER = re.compile("[\ud800-\udbff][\udc00-\udfff]")


_JSON = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def encode(what: str, value: object, max_bytes: int) -> bytes:
    """Returns `value` as JSON bytes.

    Raises InvalidJob naming the path of what JSON cannot give back unchanged, PayloadTooLarge over
    `max_bytes`.
    """
    _check(value, what, 0)
    return _dump(what, value, max_bytes)


def _dump(what: str, value: object, max_bytes: int) -> bytes:
    try:
        data = b"null" if value is None else _JSON.encode(value).encode("ascii")
    except ValueError as error:  # an int of more digits than Python turns into text
        raise InvalidJob(f"{what} cannot be written as JSON: {error}") from error
    if len(data) > max_bytes:
        raise PayloadTooLarge(
            f"{what} takes {len(data):,} bytes as JSON, the limit is {max_bytes:,}: keep large data "
            "elsewhere and pass a reference to it"
        )
    return data


def decode(data: bytes) -> object:
    """The value that `encode` was given. Raises CorruptRecord when these are not JSON bytes."""
    try:
        return json.loads(data.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise CorruptRecord(f"a stored value is not the JSON that was written: {error}") from error


def _check(value: object, path: str, depth: int) -> None:
    kind = type(value)
    if kind is int or kind is bool or value is None:
        return
    if kind is str:
        _check_text(value, path)  # type: ignore[arg-type]
        return
    if kind is float:
        if not math.isfinite(value):  # type: ignore[arg-type]
            raise InvalidJob(f"{path} is {value}, which JSON cannot hold")
        return
    if kind is not list and kind is not dict:
        raise InvalidJob(
            f"{path} is of type {kind.__name__}, which JSON does not give back unchanged: use None, bool, "
            "int, float, str, list, or dict with str keys"
        )
    if depth >= MAX_DEPTH:
        raise InvalidJob(f"{path[:200]} is nested more than {MAX_DEPTH} deep (or contains itself)")
    if kind is list:
        for index, item in enumerate(value):  # type: ignore[var-annotated, arg-type]
            _check(item, f"{path}[{index}]", depth + 1)
        return
    for key, item in value.items():  # type: ignore[attr-defined]
        if type(key) is not str:
            raise InvalidJob(
                f"{path} has the key {shown(key)} of type {type(key).__name__}: JSON keys are str"
            )
        inner = f"{path}[{shown(key)}]"
        _check_text(key, f"the key of {inner}")
        _check(item, inner, depth + 1)


def _check_text(text: str, path: str) -> None:
    # A lone surrogate comes back from JSON, two in a row come back as the one character that they encode.
    if not text.isascii() and SPLIT_CHARACTER.search(text):
        raise InvalidJob(
            f"{path} holds two surrogates for one character, which JSON joins: decode it as UTF-16 first"
        )


def encode_payload(
    args: tuple[object, ...],
    kwargs: dict[str, object],
    meta: dict[str, str],
    max_bytes: int = MAX_PAYLOAD_BYTES,
) -> bytes:
    """What a job carries, as the bytes that are written once at enqueue."""
    for name, text in meta.items():
        if type(name) is not str or type(text) is not str:
            raise InvalidJob(f"meta maps str to str; {shown(name)} does not")
        _check_text(name, "a name in meta")
        _check_text(text, f"meta[{shown(name)}]")
    for index, value in enumerate(args):
        _check(value, f"args[{index}]", 0)
    _check(kwargs, "kwargs", 0)
    return _dump("the payload", {"args": list(args), "kwargs": kwargs, "meta": meta}, max_bytes)


def decode_payload(data: bytes) -> tuple[list[object], dict[str, object], dict[str, str]]:
    """Returns args, kwargs and meta. Raises CorruptRecord when these are not the bytes of
    `encode_payload`."""
    payload = decode(data)
    try:
        args, kwargs, meta = payload["args"], payload["kwargs"], payload["meta"]  # type: ignore[index]
    except (TypeError, KeyError) as error:
        raise CorruptRecord("a stored payload has no args, kwargs and meta") from error
    if not (isinstance(args, list) and isinstance(kwargs, dict) and isinstance(meta, dict)):
        raise CorruptRecord("a stored payload's args, kwargs or meta are of another type")
    return args, kwargs, meta


def encode_error(error: JobError) -> bytes:
    """The error as ASCII-escaped JSON, so that NUL and lone surrogates are the same to every store."""
    return json.dumps([error.type, error.message, error.traceback], separators=(",", ":")).encode("ascii")


def decode_error(data: bytes) -> JobError:
    """The error that `encode_error` was given."""
    try:
        kind, message, traceback = json.loads(data)
    except (ValueError, TypeError) as error:
        raise CorruptRecord(f"a stored error cannot be read: {error}") from error
    return JobError(kind, message, traceback)


@lru_cache(256)
def encode_backoff(backoff: Backoff) -> bytes:
    """The backoff as JSON bytes."""
    return json.dumps(
        [list(backoff.delays_ms), backoff.factor, backoff.cap_ms, backoff.jitter], separators=(",", ":")
    ).encode("ascii")


@lru_cache(256)
def decode_backoff(data: bytes) -> Backoff:
    """The backoff that `encode_backoff` was given."""
    try:
        delays, factor, cap, jitter = json.loads(data)
        return Backoff(tuple(delays), factor, cap, jitter)
    except (ValueError, TypeError, ConfigurationError) as error:
        raise CorruptRecord(f"a stored backoff cannot be read: {error}") from error


def describe_error(error: BaseException) -> JobError:
    """Type, message and traceback of what a handler raised, whatever it is: an exception whose `str()`
    raises, a group, a recursion, an 8 MB message. Never raises; the texts together stay under
    MAX_ERROR_BYTES."""
    try:
        message = str(error)
    except BaseException as second:
        message = f"(its message cannot be had: str() raised {type(second).__name__})"
    try:
        # `limit` bounds the work for a RecursionError; the innermost frames say the most. Each part is cut by
        # itself, so that a message of megabytes at the end does not push out the frames.
        parts = traceback_module.format_exception(type(error), error, error.__traceback__, limit=-50)
        trace = "".join(part if len(part) <= 2000 else f"{part[:2000]}{CUT}\n" for part in parts)
    except BaseException as second:
        trace = f"(its traceback cannot be had: formatting it raised {type(second).__name__})"
    return clipped(type(error).__qualname__, message, trace)


def clipped(kind: str, message: str, traceback: str = "") -> JobError:
    """A JobError whose texts together stay under MAX_ERROR_BYTES as stored: the head of the message, the tail
    of the traceback, each with a mark where it was cut."""
    kind = head(kind, 200)
    message = head(message, 4000)
    room = MAX_ERROR_BYTES - _stored(kind) - _stored(message) - 64
    if _stored(traceback[-room:]) <= room and len(traceback) <= room:
        return JobError(kind, message, traceback)
    tail = traceback[-room:]
    while _stored(tail) > room - len(CUT) - 1:
        tail = tail[len(tail) // 8 + 1 :]
    return JobError(kind, message, f"{CUT}\n{tail}")


def _stored(text: str) -> int:
    return len(json.dumps(text))


def head(text: str, room: int) -> str:
    """The text, or as much of it as takes at most `room` bytes as JSON, with a mark where it was cut."""
    kept = text[:room]
    while _stored(kept) > room:
        kept = kept[: len(kept) - len(kept) // 8 - 1]
    return text if kept == text else kept + CUT
