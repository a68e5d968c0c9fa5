"""What a server may be like: full, badly set up, old, behind TLS or an access list; and what `check` says."""

from __future__ import annotations

import subprocess
import traceback
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from localstack.servers import RedisServer, free_port
from mayflymq.backends.redis.backend import open as open_redis
from mayflymq.errors import BackendError, ConfigurationError
from mayflymq.model import Finding, Severity
from tests.contract.bench import Bench, check_invariants
from tests.faults.faultpoints import QUEUE

from .store import CALLS, REDIS, Store

SECRET = "s3cr3t-Wörd/@:"
QUOTED = "s3cr3t-W%C3%B6rd%2F%40%3A"
NEEDED = (
    *("evalsha", "eval", "time", "exists", "get", "set", "echo"),
    *("hget", "hset", "hsetnx", "hdel", "hmget", "hgetall", "hexists", "hincrby", "hkeys"),
    *("zadd", "zrem", "zcard", "zrange", "zrangebyscore", "zrangebylex", "zscan", "del", "unlink"),
    *("sadd", "srem", "smembers"),
)
"""The commands that a user of the server has to be allowed, on the keys `<prefix>:*`; `info` and `config|get`
only for `check`."""


# check()


def subjects(found: list[Finding]) -> dict[str, Severity]:
    return {each.subject: each.severity for each in found}


@contextmanager
def configured(store: Store, **settings: str) -> Iterator[None]:
    before = {name: store.client.config_get(name)[name] for name in settings}
    for name, value in settings.items():
        store.client.config_set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            store.client.config_set(name, value)


def test_a_server_that_is_set_up_well(store: Store) -> None:
    assert subjects(store.open().check()) == {"version": Severity.OK}


def test_an_eviction_policy_is_an_error(store: Store) -> None:
    with configured(store, **{"maxmemory-policy": "allkeys-lru"}):
        found = store.open().check()
    assert subjects(found)["eviction"] is Severity.ERROR
    assert "noeviction" in found[1].message


@pytest.mark.parametrize(("save", "severity"), [("3600 1", Severity.WARNING), ("", Severity.ERROR)])
def test_no_persistence_is_reported(store: Store, save: str, severity: Severity) -> None:
    with configured(store, appendonly="no", save=save):
        found = [each for each in store.open().check() if each.subject == "persistence"]
    assert [found[0].severity, found[-1].severity] == [Severity.WARNING, severity]
    assert "appendonly" in found[0].message


@pytest.mark.parametrize(
    ("version", "severity"),
    [("6.0.16", "error"), ("6.2.0", "ok"), ("7.2.4", "ok"), ("10.0.0", "ok"), ("5.0.7", "error")],
)
def test_the_version_of_the_server(
    store: Store, monkeypatch: pytest.MonkeyPatch, version: str, severity: str
) -> None:
    handle = store.open()
    monkeypatch.setattr(handle, "_info", lambda: {"redis_version": version, "aof_enabled": 1})
    [found] = handle.check()
    assert (found.subject, str(found.severity)) == ("version", severity)
    assert version in found.message


def test_a_replica_is_reported(store: Store) -> None:
    store.client.replicaof("127.0.0.1", "1")
    try:
        assert subjects(store.open().check())["role"] is Severity.ERROR
    finally:
        store.client.replicaof("NO", "ONE")


# Users and passwords


@contextmanager
def user(store: Store, *rules: str) -> Iterator[str]:
    """A user of the server; its URL."""
    name = f"worker-{uuid.uuid4().hex}"
    store.client.execute_command("ACL", "SETUSER", name, "reset", "on", f">{SECRET}", *rules)
    try:
        yield f"redis://{name}:{QUOTED}@127.0.0.1:{store.server.port}/0?prefix={store.prefix}"
    finally:
        store.client.execute_command("ACL", "DELUSER", name)


@pytest.mark.parametrize("rules", [["-@admin"], ["-config"], ["-info", "-config"]])
def test_what_may_not_be_asked_is_said(store: Store, rules: list[str]) -> None:
    with user(store, "~*", "+@all", *rules) as url:
        found = store.open_url(url).check()
    said = [each for each in found if each.subject == "settings"]
    assert {each.severity for each in said} == {Severity.WARNING}
    assert len(said) == len([rule for rule in rules if rule != "-@admin"]) + (rules == ["-@admin"])
    assert all("may not be asked" in each.message and "noeviction" in each.message for each in said)


@pytest.mark.usefixtures("_small_steps")
def test_a_user_with_the_least_rights_can_do_everything(store: Store) -> None:
    allowed = [f"+{command}" for command in NEEDED if command != "echo"]
    with user(store, f"~{store.prefix}:*", "resetchannels", *allowed) as url:
        for name, situation in CALLS.items():
            if name.startswith("check"):
                continue
            store.arrange(situation)
            expected = repr(situation.call(store.bench(broker=True)))
            store.arrange(situation)
            handle = store.open_url(url, clock=store.clock, broker=True)
            q = Bench(handle, store.clock, QUEUE)
            assert repr(situation.call(q)) == expected, name
            handle._used = (0.0, 0.0)
            q.promote()
            handle.close()
        foreign = Store(store.server)
        q = Bench(
            store.open_url(url.replace(f"prefix={store.prefix}", f"prefix={foreign.prefix}")),
            store.clock,
            QUEUE,
        )
        with pytest.raises(BackendError, match="refused a call") as caught:
            q.enqueue("j")
        assert not caught.value.transient
        assert foreign.contents() == {}
        foreign.close()


@pytest.mark.parametrize("url", ["redis://user:{}@127.0.0.1:{}/0", "redis://:{}@127.0.0.1:{}/0"])
def test_a_wrong_password_is_clear_and_shown_nowhere(store: Store, url: str) -> None:
    handle = store.open_url(url.format(QUOTED, store.server.port))
    with pytest.raises(BackendError, match="refused the user or the password") as caught:
        handle.queues(["q"])
    assert not caught.value.transient
    shown = "".join(traceback.format_exception(caught.value))
    for text in (shown, repr(handle), str(handle), repr(caught.value)):
        assert "s3cr3t" not in text


@pytest.mark.parametrize(
    "rest",
    [
        "user:s3cr3t/x@127.0.0.1/0",
        "user:s3cr3t#x@127.0.0.1/0",
        "user:s3cr3t?x@127.0.0.1/0",
        ":6379/s3cr3t@127.0.0.1:6379/0",
        "u:s3cr3t@h:port/0",
        "u:s3cr3t@h:99999999/0",
        "u:s3cr3t@h/0?foo=s3cr3t",
        "u:s3cr3t@h/0?socket_timeout=s3cr3t",
        "u:s3cr3t@h/0?decode_responses=1",
        "u:s3cr3t@h/0?protocol=3",
        "u:s3cr3t@h/0?prefix=",
        "u:s3cr3t@h/0?prefix={x}",
        "u:s3cr3t@h/0?cluster=yes",
        "u:[s3cr3t@h/0",
    ],
)
def test_a_url_that_cannot_work_is_refused_at_once(rest: str) -> None:
    for scheme in ("redis", "rediss"):
        with pytest.raises(ConfigurationError) as caught:
            open_redis(f"{scheme}://{rest}")
        assert "s3cr3t" not in "".join(traceback.format_exception(caught.value))


# Memory


@pytest.mark.promise("D4", backends=REDIS)
@pytest.mark.usefixtures("_small_steps")
@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_finds_no_memory_is_done_or_leaves_nothing(store: Store, name: str) -> None:
    situation = CALLS[name]
    store.arrange(situation)
    expected = repr(situation.call(store.bench(broker=True)))
    once = store.observe()
    store.arrange(situation)
    q = store.bench(broker=True)
    q.info()
    before = store.contents()
    refused = False
    with configured(store, maxmemory="1"):
        try:
            answer = repr(situation.call(q))
        except BackendError as error:
            if error.transient or "out of memory" not in str(error):
                raise
            refused, answer = True, expected
            assert store.contents() == before
    if refused:
        assert name.partition(":")[0] not in ("claim", "heartbeat", "settle", "release_stale", "promote_due")
        assert name.partition(":")[0] not in ("remove", "clean", "drain", "drop_queue"), "they give some back"
        answer = repr(situation.call(q))
    else:
        assert name.partition(":")[0] not in ("enqueue", "retry", "put_schedule") or "replacing" in name
    assert answer == expected
    assert store.observe() == once


@pytest.mark.promise("G4", "D4", backends=REDIS)
def test_memory_that_ends_within_a_batch(store: Store, q: Bench) -> None:
    """The server measures before a script, so a batch is taken whole, and the next one is refused."""
    q.enqueue("first")
    used = store.client.info("memory")["used_memory"]
    accepted = 0
    with configured(store, maxmemory=str(used + 500_000)):
        error = None
        while error is None:
            jobs = [q.new(f"{accepted}-{n}", payload=b"x" * 900) for n in range(100)]
            try:
                assert {each.status for each in q.enqueue(*jobs)} == {"created"}
                accepted += len(jobs)
            except BackendError as refusal:
                error = refusal
        assert "out of memory" in str(error)
        assert len(q.claim(10)) == 10, "what is there can be worked off"
    assert q.counts() == {"active": 10, "waiting": accepted - 9}
    assert q.enqueue("again")[0].status == "created"
    check_invariants(q.backend, QUEUE)


# TLS


def certificate(folder: Path, name: str) -> Path:
    file = folder / f"{name}.crt"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
            ),
            *("-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"),
            *("-keyout", str(folder / f"{name}.key"), "-out", str(file)),
        ],
        check=True,
        capture_output=True,
    )
    return file


def test_tls(tmp_path: Path) -> None:
    trusted, other = certificate(tmp_path, "trusted"), certificate(tmp_path, "other")
    port = free_port()
    settings = {
        "tls-port": str(port),
        "tls-cert-file": str(trusted),
        "tls-key-file": str(tmp_path / "trusted.key"),
        "tls-ca-cert-file": str(trusted),
        "tls-auth-clients": "no",
    }
    with RedisServer(config=settings) as server:
        store = Store(server)
        url = f"rediss://127.0.0.1:{port}/0?prefix={store.prefix}"
        q = Bench(store.open_url(f"{url}&ssl_ca_certs={trusted}"), store.clock, QUEUE)
        q.enqueue("j")
        assert q.take() == ["j"]
        for wrong in (f"&ssl_ca_certs={other}", ""):
            with pytest.raises(BackendError, match="certificate of redis is not trusted") as caught:
                store.open_url(url + wrong).queues(["q"])
            assert not caught.value.transient
        with pytest.raises(BackendError, match="cannot be reached"):
            store.open_url(f"redis://127.0.0.1:{port}/0").queues(["q"])
        store.close()
