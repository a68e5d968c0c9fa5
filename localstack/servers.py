"""Real servers for tests, benchmarks and the demonstration: native binaries on private loopback ports, with
their data in a temporary directory, stopped by pid.

`python -m localstack.servers up` starts them on their usual ports for work by hand, as containers where a
Docker engine answers (compose.yaml), and `down` stops them and deletes their data.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PATIENCE_S = 20

HERE = Path(__file__).resolve().parent
COMPOSE = ("docker", "compose", "-f", str(HERE / "compose.yaml"))
STATE = HERE.parent / "build" / "servers.json"
"""What `up` started natively, by name, for `down`."""
REDIS_PORT = 6379


class ServerError(RuntimeError):
    """A server is not installed, or did not come up; the message says what to do."""


def free_port() -> int:
    """A loopback port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _free_ports() -> int:
    """A free port that is free 10,000 above it too: a cluster node's bus is there."""
    while True:
        port = free_port()
        with contextlib.suppress(OSError, OverflowError), socket.socket() as bus:
            bus.bind(("127.0.0.1", port + 10_000))
            return port


def redis_binary() -> str:
    """The server's binary: what is first on the PATH."""
    binary = shutil.which("redis-server") or shutil.which("valkey-server")
    if binary is None:
        raise ServerError("redis-server is not installed: run `make servers` (or install redis-server)")
    return binary


def redis_version() -> tuple[int, ...]:
    """The version of that binary."""
    said = subprocess.run([redis_binary(), "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"v=(\d+)\.(\d+)", said)
    if found is None:
        raise ServerError(f"{redis_binary()} does not say its version: {said.strip()}")
    return tuple(map(int, found.groups()))


class RedisServer:
    """A Redis (or Valkey) server with append-only persistence; with `cluster`, one node that owns every
    slot. Without a port it listens on one that is free."""

    def __init__(
        self, *, cluster: bool = False, config: dict[str, str] | None = None, port: int | None = None
    ) -> None:
        self._binary = redis_binary()
        self._cluster = cluster
        self._config = config or {}
        self._folder = Path(tempfile.mkdtemp(prefix="mayflymq-redis-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.port = port or (_free_ports() if cluster else free_port())

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
            for first in range(0, 16384, 1024):  # ADDSLOTSRANGE would need version 7
                self._ask("CLUSTER ADDSLOTS " + " ".join(map(str, range(first, first + 1024))))
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
        """Stops the server and starts it on the same data and port. A killed one may have kept its last two
        seconds to itself, unless appendfsync is always: it puts off writes while the disk is busy."""
        self._end(signal.SIGTERM)
        self.start()

    def stop(self) -> None:
        """Stops the server and deletes its data."""
        self._end(signal.SIGTERM)
        shutil.rmtree(self._folder, ignore_errors=True)

    def leave(self) -> dict[str, str | int]:
        """Lets go of the server, which goes on; returns what another process needs to find and to stop it."""
        assert self._process is not None
        process, self._process = self._process, None
        process.returncode = 0  # it is meant to outlive this object, so no warning that it does
        return {"pid": process.pid, "port": self.port, "url": self.url, "folder": str(self._folder)}

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


# `up` and `down`


def has_docker() -> bool:
    """Whether a Docker engine answers and compose is there; the commands alone start nothing."""
    asked = (["docker", "info", "--format", "{{.ServerVersion}}"], ["docker", "compose", "version"])
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return all(
            subprocess.run(ask, capture_output=True, timeout=PATIENCE_S).returncode == 0 for ask in asked
        )
    return False


def up(state: Path = STATE, port: int = REDIS_PORT) -> None:
    """Starts what is not running yet."""
    known = _started(state)
    if "redis" in known and _redis_pid(known["redis"]["port"]) == known["redis"]["pid"]:
        print(f"redis      runs already: {known['redis']['url']}")
    elif _listens(port):
        raise ServerError(
            f"something listens on port {port} already. Choose another: make up PORT={port + 1}; or use what "
            f"is there, if it is a Redis: {_export(f'redis://127.0.0.1:{port}/0')}"
        )
    else:
        server = RedisServer(port=port)
        try:
            server.start()
        except ServerError:
            server.stop()
            raise
        state.parent.mkdir(parents=True, exist_ok=True)
        state.write_text(json.dumps({"redis": server.leave()}))
        print(f"redis      {server.url}")
    print(_export(_started(state)["redis"]["url"]))
    print("Redis only: the other servers need a Docker engine")


def _export(url: str) -> str:
    """The line for a shell that makes the library and the command use a server."""
    return f"export MAYFLYMQ_BACKEND_URL={url}"


def _containers(do: str, port: int) -> int:
    """`up` or `down` by Docker; returns its exit code."""
    env = os.environ | {"REDIS_PORT": str(port)}
    code = subprocess.run([*COMPOSE, do, *(("-d", "--wait") if do == "up" else ())], env=env).returncode
    if do == "up":
        if code == 0:
            print(_export(f"redis://127.0.0.1:{port}/0"))
        else:
            print(f"if port {port} is taken, choose another: make up PORT={port + 1}", file=sys.stderr)
    return code


def down(state: Path = STATE) -> None:
    """Stops what `up` started, and nothing else that may listen there by now."""
    for name, server in _started(state).items():
        if _redis_pid(server["port"]) == server["pid"]:
            os.kill(server["pid"], signal.SIGTERM)
            give_up = time.monotonic() + PATIENCE_S
            while _listens(server["port"]) and time.monotonic() < give_up:
                time.sleep(0.02)
            print(f"{name:<10} stopped")
        else:
            print(f"{name:<10} was not running any more")
        shutil.rmtree(server["folder"], ignore_errors=True)
    state.unlink(missing_ok=True)


def _started(state: Path) -> dict[str, dict[str, Any]]:
    if not state.exists():
        return {}
    started: dict[str, dict[str, Any]] = json.loads(state.read_text())
    return started


def _redis_pid(port: int) -> int | None:
    """The process behind a port, as the server itself has it: a pid on file may be another's by now."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as line:
        line.settimeout(1)
        line.sendall(b"INFO server\r\n")
        answer = b""
        while not (found := re.search(rb"\bprocess_id:(\d+)\r\n", answer)):
            if not (part := line.recv(4096)):
                return None
            answer += part
        return int(found[1])
    return None


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m localstack.servers", description="local servers")
    parser.add_argument("do", choices=("up", "down"))
    parser.add_argument("--port", type=int, default=REDIS_PORT, help="where Redis listens")
    options = parser.parse_args(arguments)
    do = options.do
    try:
        if do == "down":
            down()  # also where an engine answers by now and did not when they were started
        if has_docker():
            return _containers(do, options.port)
        if do == "up":
            up(port=options.port)
    except ServerError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
