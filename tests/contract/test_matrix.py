"""Every situation that a job can be in, times everything that can happen to it.

The tables say what is expected; nothing in them is computed. A cell is `answer` when the whole record must
stay as it was, else `answer>state`, and then CHANGES says which fields change: every other field must not.
The last test holds the tables to lifecycle.TRANSITIONS, in both directions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mayflymq import lifecycle
from mayflymq.lifecycle import TRANSITIONS, Event
from mayflymq.model import TERMINAL, Claim, Dedup, DedupMode, Job, ParentPolicy, Settle, State

from .actors import ERROR
from .bench import OUTCOMES, RESULT, STALE, Bench, changed

LATER = 60_000
DEBOUNCE = Dedup("key", DedupMode.DEBOUNCE)


# How job `j` gets into each situation, by the public protocol only; the claim that its worker had, if any.


def waiting(q: Bench) -> None:
    q.enqueue("j")


def delayed(q: Bench) -> None:
    q.enqueue("j", delay_ms=LATER, dedup=DEBOUNCE)


def with_parent(q: Bench, **options: Any) -> None:
    q.enqueue("p")
    q.enqueue("j", depends_on=("p",), **options)


def due(arrange: Callable[[Bench], object]) -> Callable[[Bench], None]:
    def arranged(q: Bench) -> None:
        arrange(q)
        q.clock.advance(LATER)

    return arranged


def marked(q: Bench) -> Claim:
    claim = q.active()
    assert q.cancel("j") == ["requested"]
    return claim


def stale(arrange: Callable[[Bench], Claim]) -> Callable[[Bench], Claim]:
    def arranged(q: Bench) -> Claim:
        claim = arrange(q)
        q.clock.advance(STALE)
        return claim

    return arranged


def stalled_thrice(q: Bench) -> Claim:
    claim = q.active()
    for _ in range(3):
        q.clock.advance(STALE)
        assert q.swept() == {"j": "released"}
        claim = q.hold("j")
    return claim


def dead_with_parent(outcome: str) -> Callable[[Bench], Claim]:
    """Dead, and the parent that had ended is on its way again."""

    def arranged(q: Bench) -> Claim:
        parent = q.active("p")
        q.enqueue("j", depends_on=("p",), on_parent_failure=ParentPolicy.RUN)
        q.settle(parent, "fail")
        claim = q.hold("j")
        q.settle(claim, outcome)
        assert q.replay("p") == ["retried"]
        return claim

    return arranged


def cancelled_under(q: Bench) -> Claim:
    claim = marked(q)
    assert q.settle(claim, "complete") == "cancelled"
    return claim


def cancelled_queued(q: Bench) -> None:
    q.enqueue("j")
    assert q.cancel("j") == ["cancelled"]


def removed(q: Bench) -> Claim:
    claim = q.active()
    assert q.remove("j") == [True]
    return claim


SITUATIONS: dict[str, tuple[str | None, Callable[[Bench], Claim | None]]] = {
    "waiting": ("waiting", waiting),
    "delayed": ("delayed", delayed),
    "delayed+p": ("delayed", lambda q: with_parent(q, delay_ms=LATER)),
    "due": ("delayed", due(delayed)),
    "due+p": ("delayed", due(lambda q: with_parent(q, delay_ms=LATER))),
    "blocked": ("blocked", with_parent),
    "active": ("active", lambda q: q.active()),
    "marked": ("active", marked),
    "stale": ("active", stale(lambda q: q.active())),
    "marked-stale": ("active", stale(marked)),
    "stale-4th": ("active", stale(stalled_thrice)),
    "completed": ("completed", lambda q: q.ended("j", "complete")),
    "failed": ("failed", lambda q: q.ended("j", "fail")),
    "failed+p": ("failed", dead_with_parent("fail")),
    "expired": ("expired", lambda q: q.ended("j", "expire")),
    "expired+p": ("expired", dead_with_parent("expire")),
    "cancelled": ("cancelled", cancelled_queued),
    "by-worker": ("cancelled", lambda q: q.ended("j", "cancel")),
    "under": ("cancelled", cancelled_under),
    "removed": (None, removed),
    "unknown": (None, lambda q: None),
}
"""The state in each, and the way there. `+p`: a parent has not ended. `marked`: a cancellation stands.
`by-worker`: by the outcome Cancel. `under`: by a settle under a cancellation, which asked for Complete."""


# What happens to it, and what that answers


def settling(outcome: str) -> Callable[[Bench, Claim], str]:
    return lambda q, claim: q.settle(claim, OUTCOMES[outcome])


def claiming(q: Bench, claim: Claim) -> str:
    return "claimed" if "j" in q.take(10, token="next", worker="w2") else "-"


def sweeping(q: Bench, claim: Claim) -> str:
    return q.swept().get("j", "-")


def cleaning(q: Bench, claim: Claim) -> str:
    return "removed" if "j" in q.backend.clean(q.queue, TERMINAL, 0, 100) else "-"


def draining(include_delayed: bool) -> Callable[[Bench, Claim], str]:
    return lambda q, claim: (
        "removed" if "j" in q.backend.drain(q.queue, include_delayed, 100).job_ids else "-"
    )


def dropping(force: bool) -> Callable[[Bench, Claim], str]:
    return lambda q, claim: "dropped" if q.backend.drop_queue(q.queue, force).dropped else "refused"


def ending_parent(outcome: str) -> Callable[[Bench, Claim], str]:
    def act(q: Bench, claim: Claim) -> str:
        parent = q.hold("p")
        answer = q.backend.settle([Settle(parent, OUTCOMES[outcome])]).settled[0]
        return ",".join(f"{d.state}" for d in answer.dependants if d.job_id == "j") or "-"

    return act


def replacing(q: Bench, claim: Claim) -> str:
    return q.enqueue("k", delay_ms=LATER, dedup=DEBOUNCE)[0].status


ACTIONS: dict[str, Callable[[Bench, Claim], str]] = {
    **{name: settling(name) for name in OUTCOMES if name != "cancel"},
    "worker-cancel": settling("cancel"),
    "heartbeat": lambda q, claim: q.beat(claim),
    "claim": claiming,
    "promote": lambda q, claim: "promoted" if "j" in q.promote() else "-",
    "sweep": sweeping,
    "cancel": lambda q, claim: q.cancel("j")[0],
    "replay": lambda q, claim: q.replay("j")[0],
    "remove": lambda q, claim: "removed" if q.remove("j")[0] else "unknown",
    "enqueue": lambda q, claim: q.enqueue("j")[0].status,
    "clean": cleaning,
    "drain": draining(False),
    "drain-all": draining(True),
    "drop": dropping(False),
    "force-drop": dropping(True),
    "p-complete": ending_parent("complete"),
    "p-fail": ending_parent("fail"),
    "debounce": replacing,
}


# What is expected. In the first table a state is short for `applied>state`.

SETTLES = """
             complete  retry     retry-now defer     defer-now fail      expire    worker-cancel release
waiting      lost      lost      lost      lost      lost      lost      lost      lost          lost
delayed      lost      lost      lost      lost      lost      lost      lost      lost          lost
delayed+p    lost      lost      lost      lost      lost      lost      lost      lost          lost
due          lost      lost      lost      lost      lost      lost      lost      lost          lost
due+p        lost      lost      lost      lost      lost      lost      lost      lost          lost
blocked      lost      lost      lost      lost      lost      lost      lost      lost          lost
active       completed delayed   waiting   delayed   waiting   failed    expired   cancelled     waiting
marked       CANCEL    CANCEL    CANCEL    CANCEL    CANCEL    CANCEL    CANCEL    CANCEL        CANCEL
stale        completed delayed   waiting   delayed   waiting   failed    expired   cancelled     waiting
marked-stale CANCEL    CANCEL    CANCEL    CANCEL    CANCEL    CANCEL    CANCEL    CANCEL        CANCEL
stale-4th    completed delayed   waiting   delayed   waiting   failed    expired   cancelled     waiting
completed    duplicate lost      lost      lost      lost      lost      lost      lost          lost
failed       lost      lost      lost      lost      lost      duplicate lost      lost          lost
failed+p     lost      lost      lost      lost      lost      duplicate lost      lost          lost
expired      lost      lost      lost      lost      lost      lost      duplicate lost          lost
expired+p    lost      lost      lost      lost      lost      lost      duplicate lost          lost
cancelled    lost      lost      lost      lost      lost      lost      lost      lost          lost
by-worker    lost      lost      lost      lost      lost      lost      lost      duplicate     lost
under        REPEAT    REPEAT    REPEAT    REPEAT    REPEAT    REPEAT    REPEAT    REPEAT        REPEAT
removed      lost      lost      lost      lost      lost      lost      lost      lost          lost
unknown      lost      lost      lost      lost      lost      lost      lost      lost          lost
"""
SHORT = {
    **{str(state): f"applied>{state}" for state in State},
    "CANCEL": "cancelled>cancelled",
    "REPEAT": "cancelled",
}

FUNCTIONS = """
             heartbeat               claim          promote          sweep
waiting      lost                    claimed>active -                -
delayed      lost                    -              -                -
delayed+p    lost                    -              -                -
due          lost                    claimed>active promoted>waiting -
due+p        lost                    ->blocked      promoted>blocked -
blocked      lost                    -              -                -
active       held>active             -              -                -
marked       cancel_requested>active -              -                -
stale        held>active             -              -                released>waiting
marked-stale cancel_requested>active -              -                cancelled>cancelled
stale-4th    held>active             -              -                failed>failed
completed    lost                    -              -                -
failed       lost                    -              -                -
failed+p     lost                    -              -                -
expired      lost                    -              -                -
expired+p    lost                    -              -                -
cancelled    lost                    -              -                -
by-worker    lost                    -              -                -
under        lost                    -              -                -
removed      lost                    -              -                -
unknown      lost                    -              -                -
"""

OPERATOR = """
             cancel              replay          remove       enqueue
waiting      cancelled>cancelled not_dead        removed>gone duplicate_id
delayed      cancelled>cancelled not_dead        removed>gone duplicate_id
delayed+p    cancelled>cancelled not_dead        removed>gone duplicate_id
due          cancelled>cancelled not_dead        removed>gone duplicate_id
due+p        cancelled>cancelled not_dead        removed>gone duplicate_id
blocked      cancelled>cancelled not_dead        removed>gone duplicate_id
active       requested>active    not_dead        removed>gone duplicate_id
marked       requested           not_dead        removed>gone duplicate_id
stale        requested>active    not_dead        removed>gone duplicate_id
marked-stale requested           not_dead        removed>gone duplicate_id
stale-4th    requested>active    not_dead        removed>gone duplicate_id
completed    terminal            not_dead        removed>gone duplicate_id
failed       terminal            retried>waiting removed>gone duplicate_id
failed+p     terminal            retried>blocked removed>gone duplicate_id
expired      terminal            retried>waiting removed>gone duplicate_id
expired+p    terminal            retried>blocked removed>gone duplicate_id
cancelled    terminal            not_dead        removed>gone duplicate_id
by-worker    terminal            not_dead        removed>gone duplicate_id
under        terminal            not_dead        removed>gone duplicate_id
removed      unknown             unknown         unknown      created>waiting
unknown      unknown             unknown         unknown      created>waiting
"""

QUEUE = """
             clean        drain         drain-all     drop         force-drop
waiting      -            removed>gone  removed>gone  dropped>gone dropped>gone
delayed      -            -             removed>gone  dropped>gone dropped>gone
delayed+p    -            ->failed      ->failed      dropped>gone dropped>gone
due          -            -             removed>gone  dropped>gone dropped>gone
due+p        -            ->failed      ->failed      dropped>gone dropped>gone
blocked      -            ->failed      ->failed      dropped>gone dropped>gone
active       -            -             -             refused      dropped>gone
marked       -            -             -             refused      dropped>gone
stale        -            -             -             refused      dropped>gone
marked-stale -            -             -             refused      dropped>gone
stale-4th    -            -             -             refused      dropped>gone
completed    removed>gone -             -             dropped>gone dropped>gone
failed       removed>gone -             -             dropped>gone dropped>gone
failed+p     removed>gone -             -             dropped>gone dropped>gone
expired      removed>gone -             -             dropped>gone dropped>gone
expired+p    removed>gone -             -             dropped>gone dropped>gone
cancelled    removed>gone -             -             dropped>gone dropped>gone
by-worker    removed>gone -             -             dropped>gone dropped>gone
under        removed>gone -             -             dropped>gone dropped>gone
"""

OTHERS = """
             p-complete      p-fail        debounce
delayed      n/a             n/a           replaced>cancelled
delayed+p    -               failed>failed n/a
due          n/a             n/a           replaced>cancelled
blocked      waiting>waiting failed>failed n/a
"""


def read(table: str) -> dict[tuple[str, str], str]:
    """{(action, situation): cell}"""
    head, *rows = [line.split() for line in table.strip().splitlines()]
    return {
        (action, situation): SHORT.get(cell, cell) if table is SETTLES else cell
        for situation, *cells in rows
        for action, cell in zip(head, cells, strict=True)
        if cell != "n/a"
    }


WORKER_ACTIONS = SETTLES.split("\n")[1].split()
CELLS = {
    key: cell for table in (SETTLES, FUNCTIONS, OPERATOR, QUEUE, OTHERS) for key, cell in read(table).items()
}


# Which fields change, by action and, where that decides, the state that it leads to

FREED = {"claim_token": None, "heartbeat_at": None, "stale_at": None, "cancel_requested": False}


def failure(job: Job) -> dict[str, Any]:
    return {"failures": job.failures + 1, "error": ERROR, "first_error": job.first_error or ERROR}


def stalled(job: Job, now: int, state: str) -> dict[str, Any]:
    error = lifecycle.stalled_out(4)
    fields: dict[str, Any] = {**FREED, "stalls": job.stalls + 1}
    if state != "waiting":
        fields |= {"finished_at": now}
    if state == "failed":
        fields |= {"error": error, "first_error": error}
    return fields


def parent_ended(ended: str) -> Callable[[Job, int, str], dict[str, Any]]:
    error = lifecycle.parent_failed("p", ended)
    return lambda job, now, state: (
        {"finished_at": now, "error": error, "first_error": error} if state == "failed" else {}
    )


def claimed(job: Job, now: int, state: str) -> dict[str, Any]:
    if state == "blocked":  # the claim promoted it on its way
        return {}
    return {
        "claim_token": "next",
        "worker": "w2",
        "claimed_at": now,
        "heartbeat_at": now,
        "stale_at": now + STALE,
        "deliveries": job.deliveries + 1,
        "progress": None,
    }


REPLAYED = {"failures": 0, "stalls": 0, "finished_at": None, "progress": None, "result": None}

CHANGES: dict[str, Callable[[Job, int, str], dict[str, Any]]] = {
    "complete": lambda job, now, state: FREED | {"finished_at": now, "result": RESULT, "error": None},
    "retry": lambda job, now, state: FREED | failure(job) | {"run_at": now + LATER},
    "retry-now": lambda job, now, state: FREED | failure(job),
    "defer": lambda job, now, state: FREED | {"run_at": now + LATER},
    "defer-now": lambda job, now, state: FREED,
    "fail": lambda job, now, state: FREED | failure(job) | {"finished_at": now},
    "expire": lambda job, now, state: FREED | {"finished_at": now},
    "worker-cancel": lambda job, now, state: FREED | {"finished_at": now},
    "release": lambda job, now, state: FREED,
    "heartbeat": lambda job, now, state: {"heartbeat_at": now, "stale_at": now + STALE},
    "claim": claimed,
    "promote": lambda job, now, state: {},
    "sweep": stalled,
    "cancel": lambda job, now, state: (
        {"cancel_requested": True} if state == "active" else {"finished_at": now}
    ),
    "replay": lambda job, now, state: REPLAYED | {"replays": job.replays + 1, "retried_at": now},
    "drain": parent_ended("removed"),
    "drain-all": parent_ended("removed"),
    "p-complete": lambda job, now, state: {},
    "p-fail": parent_ended("failed"),
    "debounce": lambda job, now, state: {"finished_at": now},
}


BY_ACTION = {
    "heartbeat": ("C4", "C2"),
    "claim": ("C1",),
    "promote": ("P1",),
    "sweep": ("C5",),
    "cancel": ("X1",),
    "replay": ("A2",),
    "remove": ("A3",),
    "enqueue": ("G1", "D6"),
    "clean": ("A6",),
    "drain": ("A4",),
    "drain-all": ("A4",),
    "drop": ("A6",),
    "force-drop": ("A6",),
    "p-complete": ("G3",),
    "p-fail": ("G3",),
    "debounce": ("G2",),
}
BY_CELL = {
    ("sweep", "stale-4th"): "C14",
    ("sweep", "marked-stale"): "C15",
    ("cancel", "active"): "X2",
    ("claim", "cancelled"): "X4",
    ("promote", "due+p"): "P3",
    ("claim", "due+p"): "P3",
    ("clean", "expired"): "E2",
}
BY_ANSWER = {"lost": "C4", "duplicate": "D7", "cancelled": "X3", "applied": "D4"}


def proved(action: str, situation: str) -> set[str]:
    """The promises that a cell stands for."""
    answer = CELLS[action, situation].partition(">")[0]
    ids = {BY_ANSWER[answer]} if action in WORKER_ACTIONS else set(BY_ACTION[action])
    if (action, situation) in BY_CELL:
        ids.add(BY_CELL[action, situation])
    if action == "cancel" and answer in ("terminal", "unknown"):
        ids = {"X6"}
    return ids


@pytest.mark.parametrize(
    ("action", "situation"),
    [pytest.param(*key, marks=pytest.mark.promise(*proved(*key)), id="-".join(key)) for key in CELLS],
)
def test_cell(q: Bench, action: str, situation: str) -> None:
    answer, _, state = CELLS[action, situation].partition(">")
    before_state, arrange = SITUATIONS[situation]
    claim = arrange(q) or Claim(q.queue, "j", "token-1")
    before = q.find()
    assert (before and before.state) == before_state
    now = q.clock.advance(1)

    assert ACTIONS[action](q, claim) == answer

    after = q.find()
    if not state:
        assert after == before
    elif state == "gone":
        assert after is None
    elif before is None:
        assert (after and after.state) == state
    elif answer == "cancelled" and action in WORKER_ACTIONS:
        assert after == changed(before, state=State.CANCELLED, finished_at=now, **FREED)
    else:
        assert after == changed(before, state=State(state), **CHANGES[action](before, now, state))


@pytest.mark.promise("P3", "G3")
@pytest.mark.parametrize(
    ("parent", "options", "state"),
    [
        (None, {}, "waiting"),
        (None, {"delay_ms": 1}, "delayed"),
        ("waiting", {}, "blocked"),
        ("waiting", {"delay_ms": 1}, "delayed"),
        ("completed", {}, "waiting"),
        ("completed", {"delay_ms": 1}, "delayed"),
        ("failed", {}, "failed"),
        ("failed", {"delay_ms": 1}, "failed"),
        ("failed", {"on_parent_failure": ParentPolicy.RUN}, "waiting"),
    ],
)
def test_enqueued_into(q: Bench, parent: str | None, options: dict[str, object], state: str) -> None:
    if parent == "waiting":
        q.enqueue("p")
    elif parent:
        q.ended("p", "complete" if parent == "completed" else "fail")
    depends_on = ("p",) if parent else ()
    new = q.new("j", depends_on=depends_on, ttl_ms=9, timeout_ms=8, priority=-7, max_retries=6, **options)

    [answer] = q.enqueue(new)

    assert (answer.job_id, answer.status, answer.state) == ("j", "created", state)
    error = lifecycle.parent_failed("p", "failed") if state == "failed" else None
    assert q.get() == Job(
        id="j",
        queue=q.queue,
        task="t",
        payload=new.payload,
        state=State(state),
        priority=-7,
        created_at=q.clock.now,
        run_at=q.clock.now + 1 if new.delay_ms else None,
        ttl_ms=9,
        timeout_ms=8,
        max_retries=6,
        backoff=new.backoff,
        depends_on=depends_on,
        on_parent_failure=new.on_parent_failure,
        dedup=None,
        error=error,
        first_error=error,
        finished_at=q.clock.now if error else None,
    )


EVENTS = {
    "complete": Event.COMPLETE,
    "retry": Event.RETRY,
    "retry-now": Event.RETRY,
    "defer": Event.DEFER,
    "defer-now": Event.DEFER,
    "fail": Event.FAIL,
    "expire": Event.EXPIRE,
    "worker-cancel": Event.CANCEL,
    "release": Event.RELEASE,
    "claim": Event.CLAIM,
    "promote": Event.PROMOTE,
    "sweep": Event.RELEASE_STALE,
    "cancel": Event.CANCEL,
    "replay": Event.REPLAY,
    "enqueue": Event.ENQUEUE,
    "drain": Event.PARENT_FAILED,
    "drain-all": Event.PARENT_FAILED,
    "p-complete": Event.PARENTS_DONE,
    "p-fail": Event.PARENT_FAILED,
    "debounce": Event.REPLACE,
}
IN_TWO_STEPS = {("claim", "due"), ("claim", "due+p")}
"""Cells where the claim promotes first."""


def test_the_tables_and_the_state_machine_say_the_same() -> None:
    tested: set[tuple[str | None, Event, str | None]] = {
        (None, Event.ENQUEUE, state) for state in ("waiting", "delayed", "blocked", "failed")
    }
    for (action, situation), cell in CELLS.items():
        answer, _, after = cell.partition(">")
        before = SITUATIONS[situation][0]
        if after == "gone":
            tested.add((before, Event.REMOVE, None))
        elif answer == "cancelled" and action in WORKER_ACTIONS and after:
            tested.add((before, Event.CANCEL, after))
        elif after and action != "heartbeat" and (action, situation) not in IN_TWO_STEPS:
            tested.add((before, EVENTS[action], after))
    assert tested == {
        (before, event, after) for (before, event), ends in TRANSITIONS.items() for after in ends
    }
