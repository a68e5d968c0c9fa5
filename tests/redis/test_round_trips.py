"""One round trip a call, and a payload that goes over the line twice: to the store, and to its worker."""

from __future__ import annotations

import random

import pytest

from mayflymq.model import MAX_BATCH, Beat, Complete, Defer, Retry, Settle
from tests.contract.actors import ERROR
from tests.contract.bench import OUTCOMES, STALE, Bench
from tests.faults.faultpoints import QUEUE

from .proxy import Proxy
from .store import REDIS, Store

MIB = 1 << 20
SMALL = 8_192
INCOMPRESSIBLE = random.Random(1).randbytes(MIB)


@pytest.fixture
def far(store: Store, proxy: Proxy) -> Bench:
    """A bench behind the proxy, connected, with a queue that is known."""
    bench = store.bench(port=proxy.port)
    bench.enqueue("warm")
    bench.remove("warm")
    return bench


@pytest.mark.promise("F5", backends=REDIS)
@pytest.mark.parametrize("n", [1, MAX_BATCH])
def test_every_transition_is_one_round_trip(proxy: Proxy, far: Bench, n: int) -> None:
    ids = [f"j{k}" for k in range(n)]
    trips: dict[str, int] = {}

    def count(name: str, answer: object) -> None:
        trips[name], counted.last = proxy.turns - counted.last, proxy.turns
        assert answer, name

    class counted:
        last = proxy.turns

    count("enqueue", far.enqueue(*ids))
    count("claim", held := far.claim(n))
    assert len(held) == n
    count("heartbeat", far.backend.heartbeat([Beat(each.claim, STALE, 0.5) for each in held]))
    far.enqueue(*(f"{id}-next" for id in ids))
    counted.last = proxy.turns
    settles = [Settle(each.claim, Complete(b"1")) for each in held]
    count("settle, and the next claim", done := far.backend.settle(settles, far.request(n)))
    assert (len(done.settled), len(done.claimed)) == (n, n)
    far.clock.advance(STALE)
    count("release_stale", far.sweep(n))
    later = far.claim(n)
    assert len(later) == n
    far.backend.settle([Settle(each.claim, Retry(1000, ERROR)) for each in later])
    far.clock.advance(1000)
    counted.last = proxy.turns
    count("promote_due", far.promote(n))
    count("cancel", far.cancel(*(f"{id}-next" for id in ids)))
    count("get", far.backend.get(QUEUE, ids))
    count("clean", far.backend.clean(QUEUE, ["cancelled"], 0, n))
    assert trips == dict.fromkeys(trips, 1)


@pytest.mark.promise("F5", backends=REDIS)
def test_a_cold_process_needs_a_handful(store: Store, proxy: Proxy, q: Bench) -> None:
    """Connecting and four more for a queue that the store has never seen; the first call on any other is
    one."""
    q.enqueue("j")
    cold = store.bench(port=proxy.port)
    with proxy.counting() as first:
        assert cold.take() == ["j"]
    with proxy.counting() as second:
        assert cold.enqueue("k")
    new = store.bench(port=proxy.port).on(store.open(port=proxy.port), "new")
    new.info()
    with proxy.counting() as unknown:
        assert new.enqueue("j")
    assert (first[0] <= 4, second[0], unknown[0]) == (True, 1, 6)


@pytest.mark.promise("D4", backends=REDIS)
def test_a_payload_goes_to_the_store_once_and_comes_back_with_the_claim(proxy: Proxy, far: Bench) -> None:
    def small(counts: list[int]) -> bool:
        return counts[1] < SMALL and counts[2] < SMALL

    with proxy.counting() as enqueued:
        far.enqueue(far.new("j", payload=INCOMPRESSIBLE))
    assert MIB < enqueued[1] < MIB + SMALL
    for outcome in (Defer(1), Retry(1, ERROR), Complete(b"1")):
        with proxy.counting() as claimed:
            [held] = far.claim()
        assert held.job.payload == INCOMPRESSIBLE
        assert claimed[1] < SMALL
        assert MIB < claimed[2] < MIB + SMALL
        with proxy.counting() as rest:
            assert far.beat(held.claim, progress=0.5) == "held"
            assert far.settle(held.claim, outcome) == "applied"
            far.clock.advance(1)
            far.promote()
        assert small(rest)
    with proxy.counting() as rest:
        assert far.cancel("j") == ["terminal"]
        assert far.replay("j") == ["not_dead"]
        assert far.remove("j") == [True]
    assert small(rest)


def test_large_payloads_are_stored_compressed(store: Store, proxy: Proxy, far: Bench) -> None:
    text = b'{"args":["' + b"mayfly " * 50_000 + b'"]}'
    with proxy.counting() as counts:
        far.enqueue(far.new("j", payload=text))
    assert counts[1] < len(text) / 20
    assert store.client.hstrlen(store.key("job:j"), "payload") < len(text) / 20
    with proxy.counting() as counts:
        assert far.claim()[0].job.payload == text
    assert counts[2] < len(text) / 20


@pytest.mark.promise("D4", backends=REDIS)
def test_no_script_writes_a_payload_again(store: Store, q: Bench) -> None:
    marker = "once-only"
    q.enqueue("warm")
    q.remove("warm")
    with store.watched() as seen:
        q.enqueue(q.new("j", payload=marker.encode()), q.new("l", payload=marker.encode(), delay_ms=5))
        q.clock.advance(5)
        for outcome in ("release", "defer-now", "retry-now", "fail"):
            claims = [each.claim for each in q.claim(2)]
            q.beat(claims[0])
            q.backend.settle([Settle(claim, OUTCOMES[outcome]) for claim in claims])
        q.replay("j", "l")
        assert len(q.claim(2)) == 2
        q.clock.advance(STALE)
        q.sweep()
        q.cancel("j", "l")
        q.remove("j", "l")
    writes = [words[0] for by_script, words in seen if by_script and any(marker in word for word in words)]
    assert writes == ["HSET", "HSET"]
    calls = [words for by_script, words in seen if not by_script and any(marker in word for word in words)]
    assert len(calls) == 1
