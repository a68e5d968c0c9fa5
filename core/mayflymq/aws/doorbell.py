"""Doorbells made of AWS: an SQS queue that wakes the worker function, or that function's asynchronous Invoke.

A ring says which queue has work and nothing else: the truth is in the backend, so a ring may come twice, late
or never. `MAYFLYMQ_DOORBELL` names one, and producers outside Lambda ring it too:

    connect(url, doorbell=open_doorbell("sqs:https://sqs.eu-central-1.amazonaws.com/123456789012/doorbell"))

boto3 is imported by the first ring: a container that never rings does not pay for it, and a snapshot taken
after the initialisation holds no client and no credentials.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from ..errors import ConfigurationError
from ..queue import Doorbell

VARIABLE = "MAYFLYMQ_DOORBELL"
CONNECT_TIMEOUT_S = 1
READ_TIMEOUT_S = 2
ATTEMPTS = 2
"""The second is for the connection that died while the container was frozen."""
REST_S = 10.0
"""For how long nothing is rung after a ring that failed: a doorbell that cannot be reached holds up one
enqueue and not each."""


class AwsDoorbell(Doorbell, Protocol):
    """A doorbell with a client that takes its time to be made."""

    def prepare(self) -> None:
        """Makes the client now, where the first ring would come at a bad moment for it. Raises what boto3
        raises."""
        ...


def open_doorbell(setting: str) -> AwsDoorbell | None:
    """The doorbell of a setting: `sqs:<queue url>`, `lambda:<function name or ARN>`, or "" for none.

    Nothing is connected before the first ring. Raises ConfigurationError for another value.
    """
    scheme, _, place = setting.partition(":")
    if not setting:
        return None
    if scheme == "sqs":
        if not re.fullmatch(r"https?://[\w.-]+(:\d+)?/[\w./-]*\w/?", place, re.ASCII):
            raise ConfigurationError(f"{VARIABLE}: after sqs: comes the URL of an SQS queue")
        if place.rstrip("/").endswith(".fifo"):
            # Its messages cannot be delayed one by one, and those of one group wake one worker at a time.
            raise ConfigurationError(f"{VARIABLE}: a doorbell is a standard SQS queue, not a FIFO queue")
        return SqsDoorbell(place)
    if scheme == "lambda":
        if not re.fullmatch(r"[A-Za-z0-9_:$-]{1,256}", place):
            raise ConfigurationError(f"{VARIABLE}: after lambda: comes the name or the ARN of a function")
        return LambdaDoorbell(place)
    raise ConfigurationError(
        f"{VARIABLE}: must be sqs:<queue url> or lambda:<function name>, or empty for none"
    )


class SqsDoorbell:
    """Sends `{"queue": name}` to a standard SQS queue, with the delay as its DelaySeconds (promise F4: the
    store still decides whether the job is due)."""

    def __init__(self, url: str) -> None:
        self.url = url
        # A queue of another region than this process's own: its URL says which.
        region = re.match(r"https://sqs\.([a-z0-9-]+)\.", url)
        self._client = _Client("sqs", region[1] if region else None)

    def ring(self, queue: str, delay_ms: int) -> None:
        """Sends a message that is received after `delay_ms`, a broken second counting as a whole one."""
        self._client.call(
            lambda sqs: sqs.send_message(
                QueueUrl=self.url,
                MessageBody=json.dumps({"queue": queue}),
                DelaySeconds=max(0, -(-delay_ms // 1000)),
            )
        )

    def prepare(self) -> None:
        """Makes the client now."""
        self._client.make()


class LambdaDoorbell:
    """Invokes the worker function with `{"queues": [name]}`, not waiting for it. An Invoke cannot be delayed,
    so a ring for later is left out: the promoter finds what comes due."""

    def __init__(self, function: str) -> None:
        self.function = function
        region = re.match(r"arn:[^:]+:lambda:([a-z0-9-]+):", function)
        self._client = _Client("lambda", region[1] if region else None)

    def ring(self, queue: str, delay_ms: int) -> None:
        """Invokes the function, unless there is a delay."""
        if delay_ms > 0:
            return
        self._client.call(
            lambda functions: functions.invoke(
                FunctionName=self.function,
                InvocationType="Event",
                Payload=json.dumps({"queues": [queue]}).encode(),
            )
        )

    def prepare(self) -> None:
        """Makes the client now."""
        self._client.make()


class _Client:
    """One boto3 client a process, made when it is first needed, and left alone for a while when it fails."""

    def __init__(self, service: str, region: str | None) -> None:
        self._service = service
        self._region = region
        self._made: Any = None
        # Tasks that run in threads ring too, and two clients would cost the start twice.
        self._lock = threading.Lock()
        self._rest_until = 0.0

    def make(self) -> Any:
        with self._lock:
            if self._made is None:
                self._made = _boto3_client(self._service, self._region)
            return self._made

    def call(self, send: Callable[[Any], object]) -> None:
        if time.monotonic() < self._rest_until:
            return
        try:
            send(self.make())
        except Exception:
            self._rest_until = time.monotonic() + REST_S
            raise


def _boto3_client(service: str, region: str | None) -> Any:
    try:
        import boto3  # type: ignore[import-untyped]
        from botocore.config import Config  # type: ignore[import-untyped]
    except ModuleNotFoundError as missing:
        raise ConfigurationError(f"{VARIABLE} needs boto3: pip install 'mayflymq[aws]'") from missing
    return boto3.session.Session().client(
        service,
        region_name=region,
        config=Config(
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
        ),
    )
