"""A backend and the model of reference.py side by side: every call is made to both and everything that can be
seen is compared after it. A history of such calls can be played again, and shortened while it still fails."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any
from unittest.mock import patch

from mayflymq.errors import InvalidJob
from mayflymq.model import (
    Beat,
    ClaimedJob,
    DueSchedules,
    Job,
    JobPage,
    Settle,
    SettleResult,
    State,
    StoredSchedule,
    Unpublished,
)

from .harness import Harness
from .reference import Reference, rank

LIMIT = "MAX_CHILDREN_A_STEP"
CHILDREN_A_STEP = 2
"""In place of that limit, so that cascades stop half-way."""
EXACT_ORDER = "priority, then the order of entering waiting"
"""The `capabilities.ordering` that leaves nothing open among jobs of one priority."""

# Small pools, so that ids and keys collide all the time.
IDS = tuple("abcdefgh")
KEYS = ("k", "l")


@dataclass(frozen=True)
class Call:
    """One call as the model got it: delivery tokens and cursors are the model's."""

    method: str
    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shown = [*map(show, self.args), *(f"{name}={show(value)}" for name, value in self.options.items())]
        return f"{self.method}({', '.join(shown)})"


class Disagreement(AssertionError):
    """The backend and the model differ."""


class Duel:
    """One store, its model, and the history of what was asked of both. Belongs inside `small_steps`."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.clock = harness.clock
        self.names = (harness.queue, f"{harness.queue}-2")
        self.handles: list[Any] = [harness.open(), harness.open()]
        self.model = Reference(self.clock, CHILDREN_A_STEP)
        self.exact = self.handles[0].capabilities.ordering == EXACT_ORDER
        self.history: list[Call] = []
        self.answers: Counter[object] = Counter()
        self.tokens: dict[str, str] = {}
        """The store's delivery tokens by the model's: each makes its own, one for one."""
        self.cursors: dict[Any, str] = {}
        """The store's cursors by the model's, with their list."""
        self.revisions: dict[tuple[str, str], dict[int, int]] = {}
        """The store's revisions by the model's, for each queue and schedule."""
        self.play_limit_children(CHILDREN_A_STEP)  # the duel before may have left another

    def play(self, call: Call) -> Any:
        """Makes one call to both, in turn on each handle. Returns the model's answer."""
        self.history.append(call)
        own = getattr(self, f"play_{call.method}", None)
        answer = own(*call.args, **call.options) if own else self.compare(call, call.args)
        self.look()
        return answer

    @property
    def handle(self) -> Any:
        return self.handles[len(self.history) % len(self.handles)]

    def compare(self, call: Call, args: tuple[Any, ...]) -> Any:
        """`args` is what the backend gets in place of the model's own tokens."""
        got = getattr(self.handle, call.method)(*args, **call.options)
        expected = self.expect(call, got)
        same(str(call), got, expected)
        return expected

    def expect(self, call: Call, got: Any) -> Any:
        self.model.first = () if self.exact else [str(name) for name in names_in(got)]
        expected = getattr(self.model, call.method)(*call.args, **call.options)
        self.model.first = ()
        self.answers.update(key_of(answer) for answer in answers_in(expected))
        return expected

    # The calls that are not one and the same for both

    def play_wait(self, ms: int) -> None:
        self.clock.advance(ms)

    def play_open_for_broker(self) -> None:
        """A third handle takes part from now on; deliveries are made through all of them."""
        handle: Any = self.harness.open(broker=True)
        handle.queues()  # connects
        self.handles.append(handle)
        self.model.open_for_broker()

    def play_limit_children(self, step: int) -> None:
        self.model.children_a_step = step
        for module in modules_with_the_limit():
            setattr(module, LIMIT, step)

    def play_refuse(self, method: str, *args: Any) -> None:
        try:
            getattr(self.handle, method)(*args)
        except InvalidJob:
            return
        raise Disagreement(f"{method} took bad input: {args!r:.200}")

    def play_keep_house(self) -> None:
        self.handle.migrate()
        self.handle.check()
        self.handle.close()

    def play_take_unpublished(self, queue: str, min_age_ms: int, limit: int) -> list[Unpublished]:
        got = self.handle.take_unpublished(queue, min_age_ms, limit)
        expected: list[Unpublished] = self.expect(self.history[-1], got)
        for theirs, ours in zip(got, expected, strict=False):
            if ours.token not in self.tokens:
                same("whether a new delivery has a fresh token", theirs.token in self.tokens.values(), False)
                self.tokens[ours.token] = theirs.token
        translated = [replace(each, token=self.tokens.get(each.token, "?")) for each in expected]
        same(str(self.history[-1]), got, translated)
        return expected

    def play_mark_published(self, queue: str, id: str, token: str) -> Any:
        return self.compare_delivery((queue, id), token)

    def play_claim_delivery(self, request: Any, id: str, token: str) -> Any:
        return self.compare_delivery((request, id), token)

    def compare_delivery(self, args: tuple[Any, ...], token: str) -> Any:
        # A shortened history may name a token that was not handed out in it.
        ours, theirs = (token, self.tokens[token]) if token in self.tokens else ("unknown", "unknown")
        return self.compare(Call(self.history[-1].method, (*args, ours)), (*args, theirs))

    def play_list_jobs(self, queue: str, state: State, cursor: str | None, limit: int) -> JobPage:
        theirs = None if cursor is None else self.cursors.get((queue, state, cursor))
        got: JobPage = self.handle.list_jobs(queue, state, theirs, limit)
        expected: JobPage = self.expect(self.history[-1], got)
        if self.exact and (cursor is None) == (theirs is None):
            same(str(self.history[-1]), seen(got), seen(expected))
        if got.cursor is not None and expected.cursor is not None:
            self.cursors[queue, state, expected.cursor] = got.cursor
        return expected

    def play_list_schedules(self, *args: Any) -> list[StoredSchedule]:
        got = self.handle.list_schedules(*args)
        expected: list[StoredSchedule] = self.expect(self.history[-1], got)
        self.same_schedules(str(self.history[-1]), got, expected)
        return expected

    def play_due_schedules(self, *args: Any) -> DueSchedules:
        got: DueSchedules = self.handle.due_schedules(*args)
        expected: DueSchedules = self.expect(self.history[-1], got)
        same("the store's now", got.now, expected.now)
        self.same_schedules(str(self.history[-1]), got.schedules, expected.schedules)
        return expected

    def play_advance_schedule(self, queue: str, id: str, revision: int, *slots: Any) -> Any:
        theirs = self.revisions.get((queue, id), {}).get(revision, -1)
        return self.compare(self.history[-1], (queue, id, theirs, *slots))

    def same_schedules(self, what: str, got: list[StoredSchedule], expected: list[StoredSchedule]) -> None:
        translated = []
        for theirs, ours in zip(got, expected, strict=False):
            known = self.revisions.setdefault((ours.schedule.queue, ours.schedule.id), {})
            if ours.revision not in known:
                same("whether a put makes a fresh revision", theirs.revision in known.values(), False)
                known[ours.revision] = theirs.revision
            translated.append(replace(ours, revision=known[ours.revision]))
        same(what, got, translated + expected[len(translated) :])

    # Everything that can be seen

    def look(self) -> None:
        """Empty lists are not asked for: that they are empty is in the counts. `get` says nothing that a list
        does not say, except of unknown ids, so it is asked now and then."""
        reader, model = self.handles[(len(self.history) + 1) % len(self.handles)], self.model
        found = [info for info in reader.queues(exact=len(self.history) % 2 == 0) if info.name in self.names]
        same("queues()", found, model.queues())
        for name in self.names if len(self.history) % 4 == 0 else ():
            same(f"get from {name}", reader.get(name, IDS), model.get(name, IDS))
        for info in found:
            for state in State:
                if getattr(info.counts, state):
                    got, expected = (each.list_jobs(info.name, state, None, 1000) for each in (reader, model))
                    what = f"the {state} jobs of {info.name}"
                    same(what, self.in_order(got.jobs), self.in_order(expected.jobs))
            for key in KEYS:
                holders = (each.dedup_holder(info.name, key) for each in (reader, model))
                same(f"who holds {key} in {info.name}", *holders)
            got, expected = (each.list_schedules(info.name) for each in (reader, model))
            self.same_schedules(f"the schedules of {info.name}", got, expected)

    def in_order(self, jobs: list[Job]) -> list[Job]:
        """The one place for weaker orders: jobs of one rank (one priority, one due time) compare as a set."""
        return jobs if self.exact else sorted(jobs, key=lambda job: (rank(job), job.id))


def same(what: str, got: Any, expected: Any) -> None:
    if got != expected:
        raise Disagreement(f"{what}\n  the backend: {show(got)}\n  the model:   {show(expected)}")


def seen(page: JobPage) -> tuple[list[Job], bool]:
    """A cursor is opaque; only whether there is one must agree."""
    return page.jobs, page.cursor is not None


def answers_in(answer: Any) -> Iterator[StrEnum]:
    """Every member of an enum that an answer says."""
    if isinstance(answer, StrEnum):
        yield answer
    elif isinstance(answer, SettleResult):
        yield from answers_in(answer.settled)
    elif isinstance(answer, list):
        for each in answer:
            yield from answers_in(each)
    else:
        told = getattr(answer, "status", getattr(answer, "target", None))
        if isinstance(told, StrEnum):
            yield told


def key_of(answer: StrEnum) -> tuple[str, str]:
    """For counting: members of two enums that have one value are equal."""
    return type(answer).__name__, answer.value


def names_in(answer: Any) -> Iterator[str]:
    """The ids of the jobs that an answer is about, in its order."""
    if isinstance(answer, str) and not isinstance(answer, StrEnum):
        yield answer
    elif isinstance(answer, SettleResult):
        yield from names_in(answer.claimed)
    elif isinstance(answer, list | tuple):
        for each in answer:
            yield from names_in(each)
    elif isinstance(answer, ClaimedJob):
        yield answer.job.id
    elif hasattr(answer, "job_ids"):
        yield from answer.job_ids
    elif hasattr(answer, "job_id"):
        yield answer.job_id


def show(value: Any) -> str:
    """As repr(), without the fields that have their default."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))
        given = (f"{field.name}={show(held)}" for field, held in fields if held != field.default)
        return f"{type(value).__name__}({', '.join(given)})"
    if isinstance(value, StrEnum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, list):
        return f"[{', '.join(map(show, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(show, value))}{',' * (len(value) == 1)})"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(show, value)))}}}"
    return repr(value)


# Histories


def rename(value: Any, names: dict[str, str]) -> Any:
    """The same value with other names for the queues in it."""
    if isinstance(value, str) and not isinstance(value, StrEnum):
        return names.get(value, value)
    if isinstance(value, list | tuple):
        return type(value)(rename(each, names) for each in value)
    if isinstance(value, Call):
        return Call(value.method, rename(value.args, names), value.options)
    if isinstance(value, Settle | Beat):
        return replace(value, claim=rename(value.claim, names))
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and hasattr(value, "queue"):
        return replace(value, queue=names.get(value.queue, value.queue))
    return value


QUEUES = ("q", "q-2")
"""What a history calls its queues."""


def play(harness: Harness, history: Sequence[Call]) -> None:
    """Plays a history on a new store. Raises where the backend and the model differ."""
    duel = Duel(harness)
    for call in rename(list(history), dict(zip(QUEUES, duel.names, strict=True))):
        duel.play(call)


def shorten(kind: type[Harness], folder: Path, history: list[Call]) -> str:
    """The shortest failing history found, and how it fails: calls are left out one by one, the last first."""

    def played(calls: list[Call]) -> Exception | None:
        harness = kind(folder)
        try:
            play(harness, calls)
        except Exception as error:
            return error
        finally:
            harness.close()
        return None

    failure, before = played(history), 0
    if failure is None:
        return "\n".join(["It did not happen again in:", *map(str, history)])
    while len(history) != before:
        before = len(history)
        for n in reversed(range(before)):
            shorter = history[:n] + history[n + 1 :]
            if found := played(shorter):
                history, failure = shorter, found
    return "\n".join(
        [f"{type(failure).__name__}: {failure}", "The shortest history found:", *map(str, history)]
    )


def modules_with_the_limit() -> list[Any]:
    return [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("mayflymq.") and hasattr(module, LIMIT)
    ]


@contextmanager
def small_steps() -> Iterator[None]:
    """Makes MAX_CHILDREN_A_STEP small in every module that has the name, and gives it back what it was."""
    with ExitStack() as stack:
        for module in modules_with_the_limit():
            stack.enter_context(patch.object(module, LIMIT, CHILDREN_A_STEP))
        yield
