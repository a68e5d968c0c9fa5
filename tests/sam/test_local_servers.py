"""`make up` and `make down` where no Docker engine answers."""

import json
import socket
from pathlib import Path

import pytest

from localstack import servers
from localstack.servers import ServerError, down, free_port, up


def pid_at(port: int) -> int | None:
    return servers._redis_pid(port)


def test_up_starts_once_and_down_stops_and_deletes(tmp_path: Path) -> None:
    state, port = tmp_path / "build" / "servers.json", free_port()
    up(state, port)
    try:
        pid, record = pid_at(port), json.loads(state.read_text())["redis"]
        assert pid == record["pid"]
        up(state, port)
        assert pid_at(port) == pid
    finally:
        down(state)
    assert pid_at(port) is None
    assert not Path(record["folder"]).exists()
    assert not state.exists()
    down(state)


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ServerError, match=f"port {port}"):
            up(tmp_path / "servers.json", port)


def test_down_leaves_a_server_alone_that_it_did_not_start(tmp_path: Path) -> None:
    state = tmp_path / "servers.json"
    with servers.RedisServer() as other:
        record = {"redis": {"pid": 1, "port": other.port, "url": "", "folder": str(tmp_path / "gone")}}
        state.write_text(json.dumps(record))
        down(state)
        assert pid_at(other.port) is not None
