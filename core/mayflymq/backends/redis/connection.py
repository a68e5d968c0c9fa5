"""The one connection of a backend: scripts and commands go out by it, and what fails comes back as the public
error."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ... import lifecycle
from ...errors import BackendError, ConfigurationError, redacted
from ...model import JobError
from .. import base

LUA = Path(__file__).parent / "lua"

WAKE_AFTER_S = 5
"""After a pause this long the connection may be dead without a sign. A call that cannot be sent twice is then
preceded by one that can, so that it meets a live one (promise F3)."""

MANY_BYTES = 1 << 20
"""A command up to this size goes out as one piece; what a larger one carries is not copied."""

_SETTINGS: dict[str, Any] = {
    "protocol": 2,
    "retry": Retry(NoBackoff(), 0),  # `send` knows what may be sent again
    "socket_timeout": 5,
    "socket_connect_timeout": 5,
}

_HEARD = (redis.exceptions.AuthenticationError, redis.exceptions.BusyLoadingError)
"""Connection errors, to the driver, that are a server's answer."""

_PASSING = re.compile("LOADING|READONLY|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|NOREPLICAS|BUSY |UNBLOCKED")
"""Refusals that pass by themselves. Older servers pack them into another error where a script met them."""

_PASSING_ERRORS = (
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.TryAgainError,
    redis.exceptions.ClusterDownError,
)


@cache
def script(name: str) -> tuple[str, str]:
    """The text of a script and its SHA-1, which is its name on the server.

    `_jobs` stands before every one, then the parts that its line `-- With:` names: each run of a script makes
    all functions in its text anew, so it has those it needs.
    """
    text = (LUA / f"{name}.lua").read_text("utf-8")
    if name != "registry":
        with_parts = re.search("^-- With: (.+)\\.$", text, re.MULTILINE)
        parts = ["jobs", *(with_parts[1].split(", ") if with_parts else [])]
        text = "".join((LUA / f"_{part}.lua").read_text("utf-8") for part in parts) + text
    stalled = lifecycle.stalled_out(0).message.replace("0", "@STALLS@", 1)
    for mark, value in (
        ("@STOOD@", base.STOOD),
        ("@PARENT_FAILED@", _template(lifecycle.parent_failed("@PARENT@", "@ENDED@"))),
        ("@STALLED_OUT@", _template(JobError(lifecycle.stalled_out(0).type, stalled))),
    ):
        text = text.replace(mark, value)
    return text, hashlib.sha1(text.encode("utf-8"), usedforsecurity=False).hexdigest()


def _template(error: JobError) -> str:
    return json.dumps([error.type, error.message]).replace("\\", "\\\\").replace("'", "\\'")


@lru_cache(1024)
def _head(sha: str, fixed: tuple[bytes, ...]) -> bytes:
    """The words of a script's call that are the same each time, as they go over the line (RESP)."""
    return b"".join(map(_word, (b"EVALSHA", sha.encode(), b"%d" % len(fixed), *fixed)))


def _word(word: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(word), word)


class Line(redis.Redis):
    """A client of one connection. Scripts are called on it directly: by redis-py's own way a call costs about
    three times as much (pool, events, metrics, packing the same keys each time)."""

    def alive(self) -> Line:
        """Drops the connection where the server closed it; the next command opens another."""
        connection: Any = self.connection
        if connection._sock is None:  # can_read would connect, and wait once more for a server that is away
            return self
        try:
            left = connection.can_read(0)
        except (redis.RedisError, OSError):
            left = True
        if left:
            connection.disconnect()
        return self

    def script(self, sha: str, fixed: tuple[bytes, ...], values: Sequence[bytes]) -> Any:
        """EVALSHA and its answer."""
        connection: Any = self.connection
        pieces = [b"*%d\r\n%b" % (3 + len(fixed) + len(values), _head(sha, fixed)), *map(_word, values)]
        small = sum(map(len, values)) <= MANY_BYTES
        connection.send_packed_command([b"".join(pieces)] if small else pieces)
        return connection.read_response()


class Connection:
    """Opened lazily, used by one call at a time, replaced when dead. Raises ConfigurationError for options
    that redis-py does not take."""

    def __init__(self, url: str, *, cluster: bool) -> None:
        self._url = url
        self._cluster = cluster
        self._client: Any = None
        self._waiting = False
        self._depth = 0
        self._forget()
        self._used = (0.0, 0.0)
        pool = self._plain(redis.Redis).connection_pool
        try:
            pool.connection_class(**pool.connection_kwargs)  # refuses unknown options; connects to nothing
        except (TypeError, redis.RedisError) as error:
            if unknown := re.search("unexpected keyword argument '(.+)'", str(error)):
                raise ConfigurationError(f"a redis:// URL has no option {unknown[1]}") from None
            raise ConfigurationError(f"{redacted(url)} cannot be used: {error}") from None

    def _plain(self, kind: type[redis.Redis], **options: Any) -> Any:
        try:
            return kind.from_url(self._url, **_SETTINGS, **options)
        except ValueError as error:  # its text may hold a part of a password
            option = str(error) if str(error).startswith("Invalid value for") else "its port is no number"
            raise ConfigurationError(f"{redacted(self._url)} cannot be used: {option}") from None

    def client(self) -> Any:
        """The driver's client, made where there is none."""
        if self._client is None and self._cluster:
            self._client = redis.RedisCluster.from_url(self._url, **_SETTINGS)
        elif self._client is None:
            self._client = self._plain(Line, single_connection_client=True)
        return self._client

    def script(self, name: str, fixed: tuple[bytes, ...], values: Sequence[bytes], *, repeat: bool) -> Any:
        """Runs one script; `repeat` as in `send`."""
        text, sha = script(name)

        def call(client: Any) -> Any:
            try:
                if self._cluster:
                    return client.execute_command("EVALSHA", sha, len(fixed), *fixed, *values)
                return client.script(sha, fixed, values)
            except redis.exceptions.NoScriptError:  # a new server, or one whose scripts were flushed
                return client.execute_command("EVAL", text, len(fixed), *fixed, *values)

        if not repeat and self._slept():
            self.send(lambda client: client.exists(fixed[0]))
        return self.send(call, repeat=repeat)

    def _slept(self) -> bool:
        """Whether this process, frozen perhaps, made no call for a while: either clock may stand still
        then."""
        passed = (now - used for now, used in zip(_clocks(), self._used, strict=True))
        return any(not 0 <= seconds < WAKE_AFTER_S for seconds in passed)

    def send(self, call: Callable[[Any], Any], *, repeat: bool = True) -> Any:
        """Makes a call with the client. `repeat`: it may be made once more when the line broke, as the second
        answer is right whether the first call was done or not. Raises BackendError."""
        self._own()
        with self._lock:
            if self._waiting:  # a call was interrupted, by TaskTimeout perhaps: its answer is nobody's
                self.close()
            self._waiting = True
            inside = self._depth > 0  # of another call, made by a signal's handler: that one still waits
            self._depth += 1
            try:
                try:
                    client = self.client()
                    answer = call(client if repeat or self._cluster else client.alive())
                except redis.exceptions.ReadOnlyError:  # it did nothing; another connection finds the primary
                    self.close()
                    answer = call(self.client())
                except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError) as error:
                    if not repeat or isinstance(error, _HEARD):
                        raise
                    answer = call(self.client())
                self._waiting = inside
                self._used = _clocks()
                return answer
            except (redis.RedisError, redis.exceptions.RedisClusterException) as error:
                self._waiting = inside  # the driver has read the error, or dropped the line
                raise _public(error) from error
            finally:
                self._depth -= 1

    def close(self) -> None:
        """Lets go of the connection; the next call opens another."""
        self._own()
        with self._lock:
            client, self._client = self._client, None
            if client is not None:
                client.close()

    def _own(self) -> None:
        if self._owner != os.getpid():  # a fork: neither the connection nor a held lock is this process's
            self._forget()

    def _forget(self) -> None:
        self._lock = threading.RLock()
        self._client = None
        self._waiting = False
        self._depth = 0
        self._owner = os.getpid()  # last: another thread that finds itself the owner finds all of it


def _clocks() -> tuple[float, float]:
    return time.time(), time.monotonic()


def _public(error: Exception) -> BackendError:
    """The public error for one of the driver's."""
    text = str(error) or type(error).__name__
    if isinstance(error, redis.exceptions.AuthenticationError) or "WRONGPASS" in text or "NOAUTH" in text:
        return BackendError(f"redis refused the user or the password: {text}", transient=False)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return BackendError(
            f"the certificate of redis is not trusted: name its signer by ssl_ca_certs in the URL ({text})",
            transient=False,
        )
    if isinstance(error, redis.exceptions.OutOfMemoryError) or "OOM" in text:
        return BackendError(
            "redis is out of memory and wrote nothing: raise maxmemory, or keep ended jobs for less time",
            transient=False,
        )
    if isinstance(error, redis.exceptions.ReadOnlyError) or "READONLY" in text:
        return BackendError("redis answers from a read-only replica: a failover is under way", transient=True)
    if isinstance(error, redis.exceptions.BusyLoadingError) or "LOADING" in text:
        return BackendError("redis is loading its data: try again in a moment", transient=True)
    if isinstance(error, redis.exceptions.RedisClusterException) and not isinstance(error, redis.RedisError):
        return BackendError(f"the redis cluster cannot be reached: {text}", transient=True)
    if isinstance(error, _PASSING_ERRORS):
        return BackendError(f"redis cannot be reached: {text}", transient=True)
    return BackendError(f"redis refused a call: {text}", transient=bool(_PASSING.match(text)))
