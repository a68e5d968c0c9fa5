"""Histories in which the model of test_model.py and a backend once differed, as plain tests."""

from __future__ import annotations

import pytest

from .bench import Bench
from .duel import small_steps


@pytest.mark.promise("G3")
def test_a_refused_job_leaves_no_queue_behind(q: Bench) -> None:
    assert [a.status for a in q.enqueue("j", "k", depends_on=("nobody",))] == ["refused", "refused"]
    assert q.queue not in [info.name for info in q.backend.queues()]
    assert [a.status for a in q.enqueue("j", q.new("k", depends_on=("nobody",)))] == ["created", "refused"]
    assert q.queue in [info.name for info in q.backend.queues()]


@pytest.mark.promise("D8", "O3")
def test_a_claim_sent_again_answers_in_the_order_of_the_first_answer(q: Bench) -> None:
    q.enqueue("a", "b", "c")
    first, second, _ = q.claim(3, token="t")
    assert [q.beat(second.claim), q.beat(first.claim)] == ["held", "held"]
    assert q.take(3, token="t") == ["a", "b", "c"]


@pytest.mark.promise("G3")
def test_long_cascades_go_on_in_the_order_in_which_their_parents_came(q: Bench) -> None:
    with small_steps():
        q.enqueue("old", "new")
        old, new = (claimed.claim for claimed in q.claim(2))
        q.enqueue("a", "b", "c", depends_on=("old",))
        q.enqueue("d", "e", "f", depends_on=("new",))
        assert [q.settle(new, "complete"), q.settle(old, "complete")] == ["applied", "applied"]
        assert q.ids("blocked") == ["c", "f"]
        assert [r.job_id for r in q.sweep(limit=1)] == ["old"]
        assert [r.job_id for r in q.sweep()] == ["new"]
        assert q.ids("waiting") == ["d", "e", "a", "b", "c", "f"]
