"""A line that breaks before, in and after a call, is silent, or leads to a server that will not answer."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from itertools import count
from typing import Any

import pytest

from localstack.servers import free_port
from mayflymq.backends.redis import connection as implementation
from mayflymq.backends.redis.backend import REPEATABLE
from mayflymq.errors import BackendError, TaskTimeout
from mayflymq.model import FORMAT, Enqueued, SettleResult
from tests.contract.bench import Bench
from tests.contract.harness import ROOT
from tests.faults.faultpoints import QUEUE
from tests.faults.test_crashes import statuses

from .proxy import Proxy, parrot
from .store import CALLS, REDIS, Store, method_of

pytestmark = pytest.mark.usefixtures("_small_steps")


class Expected:
    """What a call answers, sees before and leaves behind, without any fault."""

    def __init__(self, store: Store, name: str) -> None:
        self.situation = CALLS[name]
        store.arrange(self.situation)
        self.before = store.observe()
        q = store.bench(broker=True)
        q.info()
        self.answer = repr(self.situation.call(q))
        self.once = store.observe()
        self.again = repr(self.situation.call(q))
        self.twice = store.observe()


def far_bench(store: Store, proxy: Proxy, options: str = "") -> Bench:
    """A warm one."""
    q = store.bench(port=proxy.port, options=options, broker=True)
    q.backend.queues([QUEUE])
    return q


def call(expected: Expected, q: Bench) -> tuple[str, bool]:
    """The answer, and whether there was a transient error in its place."""
    try:
        return repr(expected.situation.call(q)), False
    except BackendError as error:
        if not error.transient:
            raise
        return "", True


@pytest.mark.promise("C7", "D1", "D6", "D7", "D8", "F3", backends=REDIS)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", CALLS)
def test_a_line_that_is_cut(store: Store, proxy: Proxy, name: str, when: str) -> None:
    """At each of the call's requests: before it arrives, or when it is done and not yet answered."""
    expected = Expected(store, name)
    right = {expected.answer}
    if method_of(name) in ("enqueue", "settle"):
        right.add(expected.again)  # sent again, it is a duplicate (D6, D7)
    for turn in count(1):
        store.arrange(expected.situation)
        q = far_bench(store, proxy)
        proxy.cut(when, turn)
        answer, failed = call(expected, q)
        if proxy.armed:
            proxy.disarm()
            assert not failed
            break
        found = store.observe()
        assert found in (expected.before, expected.once), "half done"
        if failed:
            assert method_of(name) not in REPEATABLE or "current token" in name  # another call comes first
            assert when == "after" or found == expected.before
            second, failed = call(expected, q)
            assert not failed
            done = expected.before == expected.once or found == expected.once
            assert second in ({expected.answer, expected.again} if done else {expected.answer})
            assert store.observe() in ([expected.once, expected.twice] if done else [expected.once])
        else:
            assert answer in right
            assert found == expected.once
        q.backend.close()
    assert turn > 1


def test_what_is_sent_again_is_what_may_be(store: Store, proxy: Proxy) -> None:
    """A second retry, cancel or promotion would say that there was nothing to do."""
    q = far_bench(store, proxy)
    q.enqueue("j", delay_ms=1)
    q.clock.advance(1)
    proxy.cut("after")
    with pytest.raises(BackendError, match="cannot be reached") as caught:
        q.promote()
    assert caught.value.transient
    assert q.state() == "waiting"
    proxy.cut("after")
    [claimed] = q.claim(token="t")
    assert claimed.job.deliveries == 1


@pytest.mark.promise("F3", "C7", backends=REDIS)
@pytest.mark.parametrize("how", ["kill", "reset", "silence"])
@pytest.mark.parametrize("name", CALLS)
def test_the_first_call_after_a_freeze(
    store: Store, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, name: str, how: str
) -> None:
    """All its sockets are dead, with a sign or without; it succeeds, whatever the call."""
    expected = Expected(store, name)
    store.arrange(expected.situation)
    q = far_bench(store, proxy, "&socket_timeout=0.25&client_name=frozen")
    wall, monotonic = implementation._clocks()
    monkeypatch.setattr(implementation, "_clocks", lambda: (wall + 60, monotonic))
    if how == "silence":
        proxy.silence()
    elif how == "kill":
        ids = [each["id"] for each in store.client.client_list() if each["name"] == "frozen"]
        assert len(ids) == 1
        store.client.client_kill_filter(_id=ids[0])
    else:
        proxy.drop(reset=True)
    started = time.monotonic()
    answer, failed = call(expected, q)
    assert (answer, failed) == (expected.answer, False)
    assert time.monotonic() - started < 5, "one socket_timeout, and the call"
    assert store.observe() == expected.once


@pytest.mark.parametrize(
    ("passed", "slept"),
    [((60, 0), True), ((0, 60), True), ((-3600, 0), True), ((4, 4), False), ((0, 0), False)],
)
def test_what_counts_as_a_freeze(
    store: Store, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, passed: tuple[int, int], slept: bool
) -> None:
    """Either clock may stand still in a frozen machine, and the wall's be set. A warm worker pays nothing."""
    q = far_bench(store, proxy)
    q.enqueue("j")
    now = implementation._clocks()
    monkeypatch.setattr(implementation, "_clocks", lambda: (now[0] + passed[0], now[1] + passed[1]))
    with proxy.counting() as counts:
        q.promote()
    assert counts[0] == (2 if slept else 1)
    monkeypatch.setattr(implementation, "_clocks", lambda: (now[0] + 100, now[1] + 100))
    with proxy.counting() as counts:
        q.take()
    assert counts[0] == 1, "what may be sent twice asks nothing first"


@pytest.mark.parametrize("call", ["promote", "info"])
def test_a_silent_line_costs_the_socket_timeout_at_most(store: Store, proxy: Proxy, call: str) -> None:
    q = far_bench(store, proxy, "&socket_timeout=0.3")
    q.enqueue("j")
    proxy.silence()
    started = time.monotonic()
    if call == "promote":
        with pytest.raises(BackendError, match="Timeout") as caught:
            q.promote()
        assert caught.value.transient
    else:
        assert q.info().counts.waiting == 1
    assert 0.25 < time.monotonic() - started < 2
    assert q.take() == ["j"]


def test_there_is_a_time_limit_where_none_is_set(store: Store) -> None:
    handle = store.open()
    assert handle.queues([]) == []
    settings = handle._connection.client().connection_pool.connection_kwargs
    assert 0 < settings["socket_timeout"] <= 5
    assert 0 < settings["socket_connect_timeout"] <= 5
    changed = store.open(options="&socket_timeout=0.5")._connection.client().connection_pool.connection_kwargs
    assert changed["socket_timeout"] == 0.5


# A server that will not


@pytest.mark.parametrize("name", CALLS)
def test_a_read_only_replica_is_a_transient_error(store: Store, name: str) -> None:
    expected = Expected(store, name)
    store.arrange(expected.situation)
    q = store.bench(broker=True)
    q.backend.queues([QUEUE])
    before = store.contents()
    store.client.replicaof("127.0.0.1", "1")
    try:
        answer, failed = call(expected, q)
        assert failed or answer == expected.answer or name.startswith("check")
        assert store.contents() == before
    finally:
        store.client.replicaof("NO", "ONE")
    assert failed == (expected.before != expected.once) or name in UNSEEN
    if failed:
        assert repr(expected.situation.call(q)) == expected.answer


UNSEEN = {name for name in CALLS if method_of(name) in ("take_unpublished", "mark_published", "republish")}
"""They write what `observe` does not show."""


@pytest.mark.parametrize(
    "answer",
    [
        b"-LOADING Redis is loading the dataset in memory\r\n",
        b"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
        b"-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n",
        b"-NOREPLICAS Not enough good replicas to write.\r\n",
        b"-CLUSTERDOWN The cluster is down\r\n",
        b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n",
        b"-READONLY You can't write against a read only replica.\r\n",
        b"-ERR Error running script (call to f_0): @user_script:1: -READONLY You can't write.\r\n",
    ],
)
def test_what_passes_by_itself_is_transient(store: Store, answer: bytes) -> None:
    with parrot(answer) as port:
        q = store.bench(port=port)
        for attempt in (q.take, q.promote, lambda: q.enqueue("j"), q.info):
            with pytest.raises(BackendError, match="redis") as caught:
                attempt()
            assert caught.value.transient, caught.value


@pytest.mark.parametrize(
    "answer",
    [
        b"-MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist.\r\n",
        b"-NOPERM this user has no permissions to run the 'evalsha' command\r\n",
        b"-ERR unknown command 'EVALSHA'\r\n",
        b"-WRONGPASS invalid username-password pair or user is disabled.\r\n",
        b"-NOAUTH Authentication required.\r\n",
        b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    ],
)
def test_what_somebody_has_to_mend_is_not(store: Store, answer: bytes) -> None:
    with parrot(answer) as port:
        q = store.bench(port=port)
        for attempt in (q.take, q.promote):
            with pytest.raises(BackendError, match="redis") as caught:
                attempt()
            assert not caught.value.transient, caught.value


def test_nobody_listens(store: Store) -> None:
    port = free_port()
    with pytest.raises(BackendError, match=f"cannot be reached.*{port}") as caught:
        store.bench(port=port).take()
    assert caught.value.transient


# One connection a process


def connections(store: Store, name: str) -> int:
    return sum(each["name"] == name for each in store.client.client_list())


def test_a_process_has_one_connection_and_starts_no_thread(store: Store) -> None:
    q = store.bench(options="&client_name=only")
    before = set(threading.enumerate())
    q.enqueue(*(f"j{n}" for n in range(40)))
    assert set(threading.enumerate()) <= before
    got: list[Any] = []
    threads = [threading.Thread(target=lambda: [got.extend(q.take()) for _ in range(5)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == sorted(f"j{n}" for n in range(40))
    assert connections(store, "only") == 1
    assert set(threading.enumerate()) <= before
    q.backend.close()
    while connections(store, "only"):
        pass
    assert q.counts() == {"active": 40}, "and a closed handle opens again"


def test_a_forked_child_opens_its_own_connection(store: Store) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.redis.processes", "fork", f"{store.server.url}?prefix={store.prefix}"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ran.stdout, ran.returncode) == ("3 1\n", 0), ran.stderr


@pytest.mark.promise("F2", backends=REDIS)
@pytest.mark.parametrize("name", ["send_packed_command", "read_response"])
def test_an_interrupted_call_leaves_no_answer_behind(
    store: Store, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """TaskTimeout may be raised anywhere; what the server then answers is nobody's."""
    q = store.bench()
    q.enqueue("a", "b")
    connection = q.backend._connection.client().connection  # type: ignore[attr-defined]
    send = connection.send_packed_command

    def interrupted(*words: Any, **_options: Any) -> None:
        if name == "send_packed_command":
            send(*words)
        raise TaskTimeout("now")

    monkeypatch.setattr(connection, name, interrupted)
    with pytest.raises(TaskTimeout):
        q.info()
    monkeypatch.undo()
    assert q.take() == ["a"]
    assert q.info().counts.active == 1


def test_an_interrupt_while_another_is_handled(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C twice: the first while the answer is awaited, the second while the connection is closed."""
    q = store.bench()
    q.enqueue("a", "b")
    handle = q.backend._connection  # type: ignore[attr-defined]
    client = handle.client()

    def interrupted(*_words: Any, **_options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(client.connection, "read_response", interrupted)
    monkeypatch.setattr(client, "close", interrupted)
    for call in (q.info, q.backend.close):
        with pytest.raises(KeyboardInterrupt):
            call()
    assert q.take() == ["a"]
    assert handle.client() is not client


def test_a_call_inside_another_leaves_that_ones_answer_alone(store: Store) -> None:
    """What a signal's handler asks in the middle of a call that is then interrupted."""
    q = store.bench()
    q.enqueue("a", "b")
    handle = q.backend._connection  # type: ignore[attr-defined]
    client = handle.client

    def inside() -> Any:
        handle.client = client
        assert q.info().counts.waiting == 2
        line = client().connection
        read = line.read_response

        def interrupted(*_words: Any, **_options: Any) -> None:
            line.read_response = read
            raise KeyboardInterrupt

        line.read_response = interrupted
        return client()

    handle.client = inside
    with pytest.raises(KeyboardInterrupt):
        q.get("a")
    assert q.get("b").id == "b"


def test_migrate_asks_whether_there_is_a_server(store: Store, proxy: Proxy) -> None:
    warm = far_bench(store, proxy).backend
    with proxy.counting() as counts:
        assert warm.migrate() == FORMAT
    assert counts[0] == 1
    with pytest.raises(BackendError, match="reached") as caught:
        store.open_url("redis://127.0.0.1:1/0?prefix=x").migrate()
    assert caught.value.transient


def test_nothing_is_connected_before_the_first_call(store: Store) -> None:
    for options in ("", "&cluster=1"):
        handle = store.open_url(f"redis://127.0.0.1:1/0?prefix=x{options}")
        with pytest.raises(BackendError, match="reached") as caught:
            handle.queues(["q"])
        assert caught.value.transient


def test_the_answers_of_the_calls_are_looked_at() -> None:
    assert statuses("enqueue", [Enqueued("j", "created")]) == ["created"]  # type: ignore[arg-type]
    assert statuses("settle", SettleResult([], [])) == []


@pytest.mark.parametrize("connected_before", [False, True])
def test_a_server_that_takes_no_connection_costs_two_connect_timeouts(
    store: Store, connected_before: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        q = store.bench(port=full.getsockname()[1], options="&socket_connect_timeout=0.3")
        if connected_before:
            q = store.bench(options="&socket_connect_timeout=0.3")
            q.info()
            connection = q.backend._connection.client().connection  # type: ignore[attr-defined]
            connection.disconnect()
            connection.port = full.getsockname()[1]
        for attempt in (q.info, q.promote):
            started = time.monotonic()
            with pytest.raises(BackendError, match="Timeout connecting") as caught:
                attempt()
            assert caught.value.transient
            assert time.monotonic() - started < 0.3 * 2 + 0.25
        for each in waiting:
            each.close()
