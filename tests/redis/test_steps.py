"""What takes several scripts: making a queue known, dropping a large one, a broker's start on a large one."""

from __future__ import annotations

import contextlib
from itertools import count
from typing import Any

import pytest

from mayflymq.backends.redis import backend as implementation
from mayflymq.errors import BackendError
from mayflymq.model import Dedup
from tests.contract.bench import Bench, check_invariants
from tests.faults.faultpoints import QUEUE
from tests.faults.situations import schedule

from .proxy import Proxy
from .store import REDIS, Store


def held(store: Store) -> set[str]:
    return {name.decode().removeprefix(f"{store.prefix}:") for name in store.contents()}


@pytest.mark.promise("A6", "D1", backends=REDIS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_drop_that_stops_between_its_steps(
    store: Store, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The rest of the queue is found, gives out nothing and keeps no key; a second drop finishes it."""
    monkeypatch.setattr(implementation, "DROP_A_CALL", 3)
    seen: set[int] = set()
    for turn in count(1):
        q = store.bench(broker=True)
        q.active("active", dedup=Dedup("a"))
        q.ended("failed", "fail")
        q.enqueue(
            "w1",
            "w2",
            "w3",
        )
        q.enqueue("keyed", dedup=Dedup("k"))
        q.enqueue("child", depends_on=("active", "w1"))
        q.enqueue("later", delay_ms=1000)
        q.backend.put_schedule(schedule(q, "s"))
        far = store.bench(port=proxy.port)
        far.info()
        proxy.cut(when, turn)
        with contextlib.suppress(BackendError):
            far.backend.drop_queue(QUEUE, True)
        if proxy.armed:
            proxy.disarm()
            break
        left = sum(q.counts().values())
        assert [info.name for info in q.backend.queues()] == [QUEUE] * bool(left)
        if 0 < left < 8:
            assert q.claim(9) == []
            assert q.backend.dedup_holder(QUEUE, "k") is None
            check_invariants(q.backend, QUEUE)
            q.sweep()
            q.promote()
            seen.add(left)
        if left:
            assert q.backend.drop_queue(QUEUE, True).dropped
        assert held(store) - {"broker", "queues"} == set()
        assert q.backend.queues() == []
        assert q.enqueue("w1", dedup=Dedup("k"))[0].status == "created"
        assert q.backend.drop_queue(QUEUE, True).dropped
    assert len(seen) > 1, "it stopped in the middle"


@pytest.mark.promise("R4", backends=REDIS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_brokers_start_that_stops_between_its_steps(store: Store, proxy: Proxy, when: str) -> None:
    """On a queue too large for one script. The next start goes on, and each job has one delivery."""
    n = 1200
    ids = [f"w{k}" for k in range(n)]
    for turn in (1, 4, 5, 6):
        q = store.bench()
        q.enqueue(*ids[:1000])
        q.enqueue(*ids[1000:])
        q.ended("failed", "fail", priority=1)
        stopped = store.bench(port=proxy.port, broker=True)
        proxy.cut(when, turn)
        try:
            stopped.info()
        except BackendError:
            stopped.backend.close()
        proxy.disarm()
        q.enqueue("new")
        again = store.bench(broker=True)
        again.info()
        found = [again.backend.take_unpublished(QUEUE, 10**9, 1000) for _ in range(2)]
        taken = [each.job_id for part in found for each in part]
        assert sorted(taken) == sorted([*ids, "failed", "new"])
        assert taken[: n - 1] == ids[: n - 1], "in the order in which they were made"
        q.backend.drop_queue(QUEUE, True)
        store.empty()


@pytest.mark.promise("D1", "C11", backends=REDIS)
def test_a_queue_that_is_dropped_and_made_again_stays_in_the_registry(store: Store) -> None:
    """Two make it known at once, it is dropped, somebody makes it again; each goes on at the worst moment."""
    slow, dropper, other = store.open(), store.open(), store.bench()
    other.enqueue("j")
    register, forget = slow._run, dropper._replace
    late: list[Any] = []

    def registering(name: str, *values: Any) -> Any:
        kept = register(name, *values)
        if name == "register":
            dropper.drop_queue(QUEUE, True)
            other.enqueue("k")
        return kept

    slow._run = registering  # type: ignore[method-assign]
    dropper._replace = lambda *values: late.append(values)  # type: ignore[method-assign, assignment]
    slow._register(QUEUE)
    for values in late:
        forget(*values)
    assert other.state("k") == "waiting"
    assert [info.name for info in other.backend.queues()] == [QUEUE]


@pytest.mark.promise("D1", "C11", backends=REDIS)
def test_a_name_that_a_drop_took_away_is_written_again(store: Store) -> None:
    """Somebody makes the queue while a drop is on its way, behind the name that the drop takes away."""
    dropper, other = store.open(), store.bench()
    other.enqueue("j")
    run = dropper._run

    def dropping(name: str, *values: Any, **options: Any) -> Any:
        answer = run(name, *values, **options)
        if name == "drop_queue":
            registry = f"{store.prefix}:queues"
            before = store.client.hget(registry, QUEUE)
            other.enqueue("k")  # has the name written, the queue known
            store.client.hset(
                registry, QUEUE, before or ""
            )  # and one that was slower has put the old one back
        return answer

    dropper._run = dropping  # type: ignore[method-assign]
    assert dropper.drop_queue(QUEUE, True).dropped
    assert other.state("k") == "waiting"
    assert [info.name for info in other.backend.queues()] == [QUEUE]


@pytest.mark.parametrize("times", [1, 99])
def test_a_queue_that_is_dropped_while_it_is_registered(store: Store, times: int) -> None:
    """Nothing is lost in silence: what is asked for is done, or an error says that it was not."""
    dropper = store.open()
    for call in (
        lambda q: q.enqueue("j"),
        lambda q: q.backend.set_paused(QUEUE, True),
        lambda q: q.backend.put_schedule(schedule(q, "s")),
    ):
        q = store.bench()
        register, left = q.backend._register, [times]  # type: ignore[attr-defined]

        def registering(queue: str, register: Any = register, left: list[int] = left) -> None:
            register(queue)
            left[0] -= 1
            if left[0] >= 0:
                dropper.drop_queue(queue, True)

        q.backend._register = registering  # type: ignore[attr-defined]
        if times == 1:
            call(q)
            assert [info.name for info in q.backend.queues()] == [QUEUE]
            dropper.drop_queue(QUEUE, True)
        else:
            with pytest.raises(BackendError, match="dropped again and again") as caught:
                call(q)
            assert caught.value.transient


def test_registration_costs_nothing_later(store: Store, proxy: Proxy) -> None:
    q = store.bench(port=proxy.port)
    q.enqueue("a")
    with proxy.counting() as counts:
        q.enqueue("b")
        Bench(q.backend, q.clock, QUEUE).info()
    assert counts[0] == 2
