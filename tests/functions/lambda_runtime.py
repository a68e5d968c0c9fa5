"""Run one handler in the real Lambda runtime, without Docker.

`awslambdaric` is the runtime client of Lambda's own Python images. The runtime interface emulator, which the
SAM command line carries, stands in for the service: it starts the runtime, kills it at the timeout and starts
it anew after a crash. What differs from Lambda: the first event triggers the init and its time counts;
nothing is frozen between invocations; the runtime is never sent SIGTERM; an event over 6 MB is cut, not
refused; and once an init has failed, the answer to each later crash repeats that error.
"""

import http.client
import json
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
ERROR_KEYS = {"errorMessage", "errorType", "requestId", "stackTrace"}


@dataclass(frozen=True, slots=True)
class Invocation:
    payload: Any  # what the function returned; when it failed, the answer in place of that
    error_type: str | None  # None: the function returned
    error_message: str | None
    timed_out: bool  # killed at the timeout; the next invocation starts a new runtime
    crashed: bool  # the runtime died, in its init too; the next invocation starts a new one
    init_ms: float | None  # None: the container was warm
    duration_ms: float | None  # with the init, roughly; None after a crash, which gets no REPORT line
    billed_ms: int | None
    log: str  # what the function, the runtime and the emulator printed meanwhile


class LambdaRuntime:
    """A context manager: one function's container. Its first python_path entry is the working directory,
    which the runtime puts first on sys.path, as it does with /var/task."""

    def __init__(
        self,
        handler: str,
        *,
        env: Mapping[str, str],
        timeout_s: int = 10,
        python_path: Sequence[Path],
        python: str = sys.executable,
    ) -> None:
        self._command = [python, "-m", "awslambdaric", handler]
        self._timeout_s = timeout_s
        self._directory = python_path[0]
        # Nothing else of this process's environment: the developer's settings are not the function's.
        self._env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(map(str, python_path)),
            "TZ": ":UTC",
            "_HANDLER": handler,
            "AWS_LAMBDA_FUNCTION_NAME": handler.split(".")[-2],
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "256",
            "AWS_LAMBDA_FUNCTION_TIMEOUT": str(timeout_s),
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_SESSION_TOKEN": "test",
            **env,
        }
        self._one_at_a_time = threading.Lock()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lambda-runtime-")))
            self._log = directory / "log"
            self._port = stack.enter_context(_reserved_port())
            api_port = stack.enter_context(_reserved_port())
            emulator = find_emulator(ROOT)
            if not os.access(emulator, os.X_OK):  # an installer dropped the mode; the environment is not ours
                emulator = Path(shutil.copy(emulator, directory))
                emulator.chmod(0o755)
            addresses = ["--runtime-interface-emulator-address", f"{HOST}:{self._port}"]
            addresses += ["--runtime-api-address", f"{HOST}:{api_port}"]
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    [emulator, *addresses, *self._command],
                    cwd=self._directory,
                    env=self._env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            stack.callback(self._stop)
            self._wait_until_ready()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def invoke(self, event: object) -> Invocation:
        # A container serves one event at a time, and a second one at once crashes the emulator.
        with self._one_at_a_time:
            start = self._log.stat().st_size
            connection = http.client.HTTPConnection(HOST, self._port, timeout=self._timeout_s + 10)
            try:
                connection.request("POST", "/2015-03-31/functions/function/invocations", json.dumps(event))
                response = connection.getresponse()
                status, body = response.status, response.read().decode()
            except (OSError, http.client.HTTPException) as error:
                raise RuntimeError(f"the emulator gave no answer:\n{self._read_log(start)}") from error
            finally:
                connection.close()
            return _invocation(status, body, self._read_log(start))

    def _read_log(self, start: int = 0) -> str:
        # The runtime ends the lines within one message, such as a traceback, by carriage returns.
        return self._log.read_bytes()[start:].decode(errors="replace").replace("\r", "\n")

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + 10
        while self._process.poll() is None and time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection((HOST, self._port), timeout=1):
                return
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=0.01)
        raise RuntimeError(f"the emulator did not start:\n{self._read_log()}")

    def _stop(self) -> None:
        self._process.terminate()  # the emulator then kills the runtime's process group
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        # An emulator that crashed left the runtime behind, in another process group but in the same session.
        for pid in [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]:
            with suppress(ProcessLookupError):
                if os.getsid(pid) == self._process.pid:
                    os.kill(pid, signal.SIGKILL)


def find_emulator(root: Path) -> Path:
    machine = {"aarch64": "arm64"}.get(platform.machine(), platform.machine())
    pattern = f".venv-sam/lib/python*/site-packages/samcli/local/rapid/aws-lambda-rie-{machine}"
    for path in root.glob(pattern):
        return path
    raise RuntimeError(
        f"the Lambda runtime emulator is missing (Linux only): run `make setup`; no {root / pattern}"
    )


@contextmanager
def _reserved_port() -> Iterator[int]:
    """A free port that the kernel gives to nobody else meanwhile. With SO_REUSEADDR on both sockets, Linux
    lets the emulator listen where this one, which never listens, is bound."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((HOST, 0))
        yield reserved.getsockname()[1]


def _invocation(status: int, body: str, log: str) -> Invocation:
    payload: Any = body
    with suppress(ValueError):  # what a function returns is always JSON; a timeout is reported in plain text
        payload = json.loads(body)
    timed_out = payload == body and body.startswith("Task timed out after")
    crashed = status == http.client.BAD_GATEWAY
    error_type = error_message = None
    if timed_out:
        error_type, error_message = "Sandbox.Timedout", body  # the type that Lambda itself answers
    elif isinstance(payload, dict) and (crashed or payload.keys() == ERROR_KEYS):
        # Without a crash the status is 200 and no header tells an error, so the runtime's own keys must.
        error_type, error_message = payload["errorType"], payload["errorMessage"]
    elif crashed:  # an exit during the init is answered with an empty body
        error_type, error_message = "Runtime.ExitError", "the runtime exited during its init"
    elif status != http.client.OK:
        raise RuntimeError(f"the emulator answered {status} {body}:\n{log}")
    # The "Init Duration" of the REPORT line is none: it says 0.03 ms whatever the init took.
    init = re.search(r"INIT REPORT\(durationMs: ([\d.]+)\)", log)
    report = re.search(r"^REPORT .*\tDuration: ([\d.]+) ms\tBilled Duration: (\d+) ms", log, re.MULTILINE)
    return Invocation(
        payload=payload,
        error_type=error_type,
        error_message=error_message,
        timed_out=timed_out,
        crashed=crashed,
        init_ms=float(init[1]) if init else None,
        duration_ms=float(report[1]) if report else None,
        billed_ms=int(report[2]) if report else None,
        log=log,
    )
