"""Real servers for tests, benchmarks and the demonstration: native binaries on private loopback ports, with
their data in a temporary directory, stopped by pid."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

PATIENCE_S = 20


class ServerError(RuntimeError):
    """A server is not installed, or did not come up; the message says what to do."""


def free_port() -> int:
    """A loopback port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RedisServer:
    """A Redis (or Valkey) server with append-only persistence; with `cluster`, one node that owns every
    slot."""

    def __init__(self, *, cluster: bool = False, config: dict[str, str] | None = None) -> None:
        binary = shutil.which("redis-server") or shutil.which("valkey-server")
        if binary is None:
            raise ServerError("redis-server is not installed: run `make servers` (or install redis-server)")
        self._binary = binary
        self._cluster = cluster
        self._config = config or {}
        self._folder = Path(tempfile.mkdtemp(prefix="mayflymq-redis-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        """The URL of database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> RedisServer:
        """Starts the server on its data and waits until it answers."""
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self._folder),
            "appendonly": "yes",
            "save": "",
            "cluster-enabled": "yes" if self._cluster else "no",
            **self._config,
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binary, *words], stdout=log, stderr=log, start_new_session=True
            )
        give_up = time.monotonic() + PATIENCE_S
        while self._ask("PING") != "+PONG":
            if time.monotonic() > give_up or self._process.poll() is not None:
                raise ServerError(
                    f"redis-server did not come up: {(self._folder / 'log').read_text()[-500:]}"
                )
            time.sleep(0.02)
        if self._cluster and self._ask("CLUSTER INFO").startswith("-"):
            raise ServerError("redis-server knows no cluster mode")
        if self._cluster:
            self._ask("CLUSTER ADDSLOTSRANGE 0 16383")
            while self._ask("SET {ready} 1") != "+OK":
                if time.monotonic() > give_up:
                    raise ServerError("the cluster node did not get its slots")
                time.sleep(0.02)
        return self

    def _ask(self, command: str) -> str:
        """The first line of the answer to an inline command; '' while nobody answers."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as line:
            line.sendall(command.encode() + b"\r\n")
            return line.recv(4096).decode("utf-8", "replace").splitlines()[0]
        return ""

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stops the server as a crash would and starts it on the same data and port."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """Stops the server and deletes its data."""
        self._end(signal.SIGTERM)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            try:
                self._process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def __enter__(self) -> RedisServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
