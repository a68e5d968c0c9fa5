"""`make up` and `make down` where no Docker engine answers."""

import json
import socket
import subprocess
from pathlib import Path

import pytest

from localstack import servers
from localstack.servers import ServerError, down, free_port, up


def pid_at(port: int) -> int | None:
    return servers._redis_pid(port)


def test_up_starts_once_and_down_stops_and_deletes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, port = tmp_path / "build" / "servers.json", free_port()
    up(state, port)
    try:
        pid, record = pid_at(port), json.loads(state.read_text())["redis"]
        assert pid == record["pid"]
        up(state, port)
        assert pid_at(port) == pid
        line = f"export MAYFLYMQ_BACKEND_URL=redis://127.0.0.1:{port}/0\n"
        assert capsys.readouterr().out.count(line) == 2
    finally:
        down(state)
    assert pid_at(port) is None
    assert not Path(record["folder"]).exists()
    assert not state.exists()
    down(state)


def test_a_taken_port_is_named_with_a_way_to_choose_another(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ServerError, match=rf"port {port} .*make up PORT={port + 1}\b"):
            up(tmp_path / "servers.json", port)


def test_down_leaves_a_server_alone_that_it_did_not_start(tmp_path: Path) -> None:
    state = tmp_path / "servers.json"
    with servers.RedisServer() as other:
        record = {"redis": {"pid": 1, "port": other.port, "url": "", "folder": str(tmp_path / "gone")}}
        state.write_text(json.dumps(record))
        down(state)
        assert pid_at(other.port) is not None


@pytest.mark.parametrize(("code", "says"), [(0, "export MAYFLYMQ_BACKEND_URL="), (1, "make up PORT=6391")])
def test_with_docker_the_port_is_the_container_s(
    code: int, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ports = []

    def compose(command: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        ports.append(env["REDIS_PORT"])
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(servers, "has_docker", lambda: True)
    monkeypatch.setattr(servers.subprocess, "run", compose)
    assert servers.main(["up", "--port", "6390"]) == code
    assert ports == ["6390"]
    assert "${REDIS_PORT:-6379}:6379" in (servers.HERE / "compose.yaml").read_text(encoding="utf-8")
    printed = capsys.readouterr()
    assert says in printed.out + printed.err
