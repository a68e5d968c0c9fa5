"""One protocol call in a process that is killed on its way, at the n-th of the call's fault points.

A fault point stands before each statement or command that the backend sends, and one behind the last: what is
behind one of them is before the next. A killed process cleans nothing up (SIGKILL).

To add a backend, write `fault_<name>.py` with a class FAULTS that keeps the protocol `FaultHarness` (it gives
each run a fresh copy of a prepared store and hands the rest to `Victims`), and a function `install(points)`
that wraps the backend's driver in this process: `points.here()` is called before each statement or command,
`points.wrote(name)` for each that changed something. Then add the name to BACKENDS in test_crashes.py.

    python -m tests.faults.faultpoints NAME

is the process that forks the victims, as the test's own has threads. A line is a request or an answer.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mayflymq.backends.base import Backend, open_backend
from mayflymq.model import MAX_CHILDREN_A_STEP
from tests.contract.bench import Bench
from tests.contract.harness import ManualClock

ROOT = Path(__file__).resolve().parents[2]
QUEUE = "q"
STEP = 3
"""MAX_CHILDREN_A_STEP for these tests, so that a handful of children makes a long cascade."""


@dataclass(frozen=True)
class Situation:
    """Where a store stands (by the public protocol, apart from `spoil`) and the one call that is made on it.

    The call runs in another process than the arrangement: it names its tokens itself.
    """

    arrange: Callable[[Bench], None] | None
    """None: there is no store yet."""
    call: Callable[[Bench], Any]
    broker: bool = True
    """Whether the store keeps deliveries while it is arranged; the call's handle always does."""
    connected: bool = True
    """Whether the call's handle is connected before the first fault point."""
    spoil: str | None = None
    """A job whose record cannot be read."""


@dataclass(frozen=True)
class Run:
    """How a call ended: killed, or with an answer; `wrote` names the statements that changed something."""

    killed: bool = False
    answer: str = ""
    wrote: list[str] = field(default_factory=list)


class FaultHarness(Protocol):
    """What the crash tests ask of a backend. Every copy of a store has the queue QUEUE and the same clock."""

    writes: frozenset[str]
    """The names of all statements or scripts that write."""
    in_steps: frozenset[str]
    """The situations whose call is several transitions, so that a crash may fall between them."""

    def run(self, name: str, point: int | None) -> Run:
        """On a fresh copy of the named situation's store: the call, killed at that point (None: never)."""
        ...

    def bench(self) -> Bench:
        """A fresh handle on the copy that the last run left."""
        ...

    def contents(self) -> object:
        """All that this copy holds. One that equals another is not checked again; a new object() is none's
        equal."""
        ...

    def close(self) -> None: ...


class Points:
    """Counts the fault points that a call passes, and kills the process at one of them."""

    def __init__(self, deadly: int | None) -> None:
        self.deadly = deadly
        self.armed = False
        self.passed = 0
        self.writes: list[str] = []

    def here(self) -> None:
        self.passed += self.armed
        if self.armed and self.passed == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)

    def wrote(self, name: str) -> None:
        if self.armed:
            self.writes.append(name)


class Victims:
    """The process that forks a victim for each request."""

    def __init__(self, name: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", __name__, name],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, situation: str, point: int | None, url: str, now: int) -> Run:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps([situation, point, url, now]) + "\n")
        stdin.flush()
        answer = json.loads(stdout.readline())
        if "raised" in answer:
            raise AssertionError(answer["raised"])
        return Run(**answer)

    def close(self) -> None:
        self._process.communicate()


@contextmanager
def small_steps() -> Iterator[None]:
    """Long cascades from STEP children on, in every module that knows the limit."""
    _set_step(STEP)
    try:
        yield
    finally:
        _set_step(MAX_CHILDREN_A_STEP)  # also where it was imported meanwhile


def _set_step(step: int) -> None:
    for name, module in sys.modules.items():
        if name.startswith("mayflymq.") and hasattr(module, "MAX_CHILDREN_A_STEP"):
            module.MAX_CHILDREN_A_STEP = step  # type: ignore[attr-defined]


def _play(name: str, situation: Situation, point: int | None, url: str, now: int) -> dict[str, object]:
    points = Points(point)
    with small_steps():
        importlib.import_module(f"tests.faults.fault_{name}").install(points)
        backend: Backend = open_backend(url, broker=True, clock=lambda: now)
        if situation.connected:
            backend.queues([QUEUE])
        points.armed = True
        answer = situation.call(Bench(backend, ManualClock(now), QUEUE))
        points.here()
    return {"answer": repr(answer), "wrote": points.writes}


def _victim(name: str, request: list[Any]) -> None:
    """Never returns: the process that forked it must not run on in it."""
    situations = importlib.import_module("tests.faults.situations").SITUATIONS
    try:
        answer = _play(name, situations[request[0]], *request[1:])
    except BaseException:
        answer = {"raised": traceback.format_exc()}
    print(json.dumps(answer), flush=True)
    os._exit(0)


def main() -> None:
    [name] = sys.argv[1:]
    importlib.import_module("tests.faults.situations")
    importlib.import_module(f"tests.faults.fault_{name}")  # loaded once, not in each victim
    for line in sys.stdin:
        victim = os.fork()
        if victim == 0:
            _victim(name, json.loads(line))
        _, status = os.waitpid(victim, 0)
        if os.WIFSIGNALED(status):
            print(json.dumps({"killed": os.WTERMSIG(status) == signal.SIGKILL}), flush=True)


if __name__ == "__main__":
    main()
