"""What the suite asks of a backend's harness, and the actors that play against each other in its race tests.

To add a backend, write `harness_<name>.py` with a subclass of `Harness` called `HARNESS`, and add the name to
BACKENDS in conftest.py. The tests never ask which backend they run on: they look at `backend.capabilities`,
and at the two `can_plant_...` attributes below.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import traceback
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Protocol

from mayflymq.backends.base import Backend, open_backend
from mayflymq.model import Clock

from . import actors

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60
START = 1_700_000_000_000


class ManualClock:
    """The store's clock, moved by hand."""

    def __init__(self, now: int = START) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, ms: int) -> int:
        self.now += ms
        return self.now


@contextmanager
def eager_threads() -> Iterator[None]:
    """Threads take turns within a call; they would otherwise finish one, and often all, before the next."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


class Harness:
    """One test's own store on one backend. A server behind it is shared by the whole run."""

    name: ClassVar[str]
    can_plant_unreadable: ClassVar[bool] = False
    """Whether `plant_unreadable` can spoil a stored record."""
    can_plant_newer: ClassVar[bool] = False
    """Whether `plant_newer` can mark a stored record as one of a newer format."""

    @classmethod
    def start(cls) -> None:
        """Starts the server, where there is one. Called once, before the backend's first test."""

    @classmethod
    def stop(cls) -> None:
        """Stops what `start` started."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.clock = ManualClock()
        self.queue = f"q-{uuid.uuid4().hex[:12]}"
        """The test's own queue; on a shared server its name is what keeps tests apart."""
        self.spoiled: set[str] = set()
        """Queues with a planted record, which no invariant holds for."""
        self._handles: list[Backend] = []
        self._actors: list[Actor] = []

    def url(self) -> str:
        """The URL of this test's store; a new name, file or database where that is cheap."""
        raise NotImplementedError

    def open(self, broker: bool = False) -> Backend:
        """An independent handle on the store, on the test's clock; with `broker` it keeps deliveries too."""
        return self._open(self.clock, broker)

    def open_real(self) -> Backend:
        """An independent handle on the store, on the store's own clock."""
        return self._open(None)

    def _open(self, clock: Clock | None, broker: bool = False) -> Backend:
        handle = open_backend(self.url(), broker=broker, clock=clock)
        self._handles.append(handle)
        return handle

    def restart(self) -> None:
        """Restarts the store, keeping its data: a server really restarts, a file is let go of by all handles.

        Only called where `capabilities.durable`.
        """
        for handle in self._handles:
            handle.close()

    def plant_unreadable(self, queue: str, job_id: str) -> None:
        """Spoils the stored record of a job, past the library, so that it cannot be read any more."""
        raise NotImplementedError

    def plant_newer(self, queue: str, job_id: str) -> None:
        """Gives the stored record of a job the next format version, past the library."""
        raise NotImplementedError

    def spawn(self, function: str, *args: object, real_clock: bool = False) -> Actor:
        """Starts a function of actors.py with a handle of its own: in a process where the store is shared by
        processes, else in a thread. Its clock stands still at the test's now. It says READY, then waits for
        `go`."""
        now = None if real_clock else self.clock.now
        kind = ProcessActor if self._handles[0].capabilities.shared else ThreadActor
        actor = kind(self.url(), now, function, args)
        self._actors.append(actor)
        return actor

    def race(self, *calls: tuple[Any, ...]) -> list[Any]:
        """Runs actors, each given as (function, *args), from one starting signal; their results in order."""
        racers = [self.spawn(str(function), *args) for function, *args in calls]
        for racer in racers:
            assert racer.hear() == actors.READY
        with eager_threads():
            for racer in racers:
                racer.go()
            return [racer.result() for racer in racers]

    def close(self) -> None:
        for actor in self._actors:
            actor.kill()
        for handle in self._handles:
            handle.close()


class Actor(Protocol):
    """A worker, sweeper or producer that the test does not share a thread with."""

    def hear(self) -> object:
        """The next thing that the actor says."""
        ...

    def go(self) -> None:
        """Ends the actor's next (or present) wait."""
        ...

    def result(self) -> object:
        """What the function returned; raises what stopped it."""
        ...

    def kill(self) -> None:
        """SIGKILL for a process; a thread stops at its next wait. It acknowledges nothing either way."""
        ...


class ProcessActor:
    def __init__(self, url: str, now: int | None, function: str, args: tuple[object, ...]) -> None:
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-W",
                "error",
                "-m",
                actors.__name__,
                url,
                json.dumps(now),
                function,
                json.dumps(args),
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def hear(self) -> object:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"the actor stopped: {self._process.stderr.read()}")
        return json.loads(line)

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def result(self) -> object:
        answer = self.hear()
        self.kill()
        return answer

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


class ThreadActor:
    def __init__(self, url: str, now: int | None, function: str, args: tuple[object, ...]) -> None:
        self._said: queue.Queue[object] = queue.Queue()
        self._signals: queue.Queue[bool] = queue.Queue()
        # As over a pipe, so that both kinds see the same values.
        copied = json.loads(json.dumps(args))
        self._thread = threading.Thread(target=self._run, args=(url, now, function, copied), daemon=True)
        self._thread.start()

    def _run(self, url: str, now: int | None, function: str, args: list[object]) -> None:
        try:
            actors.play(url, now, function, args, self._said.put, self._wait)
        except actors.Killed:
            pass
        except BaseException:
            self._said.put(AssertionError(traceback.format_exc()))

    def _wait(self) -> None:
        if not self._signals.get():
            raise actors.Killed

    def hear(self) -> object:
        answer = self._said.get(timeout=PATIENCE_S)
        if isinstance(answer, AssertionError):
            raise answer
        return answer

    def go(self) -> None:
        self._signals.put(True)

    def result(self) -> object:
        answer = self.hear()
        self.kill()
        return answer

    def kill(self) -> None:
        self._signals.put(False)
        self._thread.join(PATIENCE_S)
