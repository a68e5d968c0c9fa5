"""Runs one handler and ends it at its time limit (promise F2).

In the main thread a signal raises TaskTimeout inside the handler. An async handler's asyncio task is
cancelled, in any thread. Nothing can interrupt a plain function in another thread: there the worker stops
waiting for it.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

from .errors import TaskTimeout

AGAIN_S = 0.05
"""How soon TaskTimeout is raised again in a handler that swallowed it."""


@dataclass(slots=True)
class End:
    """How a handler ended: `raised`, or else it returned `value`. `abandoned` counts the threads that it left
    running at its limit."""

    value: object = None
    raised: BaseException | None = None
    abandoned: int = 0


def can_interrupt() -> bool:
    """Whether this system has the timer whose signal interrupts the main thread (Windows has none)."""
    return hasattr(signal, "setitimer")


def timeout(seconds: float | None, by_deadline: bool) -> TaskTimeout:
    """The error of a handler that was still running at its limit, its own or the invocation's."""
    if by_deadline:
        return TaskTimeout(f"this invocation's time was up, {seconds or 0:.3f} s after the job started")
    return TaskTimeout(f"the handler was still running at its timeout of {seconds or 0:.3f} s")


@dataclass(slots=True)
class _Limit:
    """A handler's limit, and whether it was told that it has passed: by `raised`, or by a cancellation."""

    seconds: float | None
    by_deadline: bool
    grace_s: float
    started: float
    told: bool = False
    raised: TaskTimeout | None = None

    def error(self) -> TaskTimeout:
        return timeout(self.seconds, self.by_deadline)

    def in_grace(self) -> bool:
        return time.monotonic() < self.started + (self.seconds or 0) + self.grace_s


def run(
    call: Callable[[], Any],
    *,
    is_async: bool,
    seconds: float | None,
    grace_s: float,
    alarm: bool,
    by_deadline: bool = False,
) -> End:
    """Calls a handler, for at most `seconds` (None: no limit; `by_deadline`: of the invocation), and never
    raises.

    `alarm`: this is the main thread, so the limit may use SIGALRM and its timer; both are put back as they
    were. A handler that cleans up after TaskTimeout has `grace_s` for that before it is raised again.
    """
    if seconds is None and not is_async:
        return _ended(call)
    limit = _Limit(seconds, by_deadline, grace_s, time.monotonic())
    return _run_async(call, limit, alarm) if is_async else _run(call, limit, alarm)


def _run(call: Callable[[], Any], limit: _Limit, alarm: bool, is_async: bool = False) -> End:
    interrupted = alarm and limit.seconds is not None
    return _ended(partial(_interrupted, call, limit, is_async) if interrupted else call)


def _ended(call: Callable[[], Any]) -> End:
    try:
        return End(call())
    except BaseException as error:
        return End(raised=error)


def _interrupted(call: Callable[[], Any], limit: _Limit, is_async: bool) -> Any:
    """Returns `call()`. At the limit TaskTimeout is raised in whatever the call is doing, and again while it
    goes on.

    An alarm that comes when the call has returned finds this very frame on top and does nothing: it can
    neither escape nor lose the result.
    """
    own: FrameType | None = sys._getframe()

    def ring(_signal: int, frame: FrameType | None) -> None:
        if own is None or frame is None or frame.f_globals.get("__name__") == __name__:
            return
        # An async handler is told once, and by the alarm only where it blocks its loop.
        cleans_up = limit.told if is_async else _is_handling(limit.raised)
        if limit.in_grace() and (cleans_up or _is_critical(frame, own, is_async)):
            return
        limit.told, limit.raised = True, limit.error()
        raise limit.raised

    previous = signal.signal(signal.SIGALRM, ring)
    left, every = signal.setitimer(signal.ITIMER_REAL, max(limit.seconds or 0, 0.001), AGAIN_S)
    try:
        return call()
    finally:
        own = None
        limit.raised = None  # its traceback holds this frame, which holds it
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if previous is None else previous)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - limit.started), 0.001), every)


def _is_critical(frame: FrameType, own: FrameType, is_async: bool) -> bool:
    """Whether an exception raised in `frame` would leave something half done that others use: a call to a
    store (its connection is the worker's too), or the loop of an async handler (which ends it by itself)."""
    if is_async and str(frame.f_globals.get("__name__")).partition(".")[0] in ("asyncio", "selectors"):
        return True
    outer: FrameType | None = frame
    while outer is not None and outer is not own:
        if str(outer.f_globals.get("__name__")).startswith("mayflymq.backends."):
            return True
        outer = outer.f_back
    return False


def _is_handling(raised: TaskTimeout | None) -> bool:
    """Whether the interrupted code is in an `except` or `finally` that `raised` led to."""
    error = sys.exception()
    for _ in range(100):
        if raised is None or error is None or error is raised:
            break
        error = error.__context__
    return raised is not None and error is raised


def _run_async(call: Callable[[], Any], limit: _Limit, alarm: bool) -> End:
    """Runs a coroutine function on an event loop of its own. A loop that is blocked by plain code is
    interrupted by the alarm, where there is one."""
    import asyncio
    from concurrent.futures import Future, ThreadPoolExecutor, wait

    class Threads(ThreadPoolExecutor):
        """Where asyncio.to_thread goes. Closing the loop does not wait for a thread that may never end."""

        def __init__(self) -> None:
            super().__init__(thread_name_prefix="mayflymq-to-thread")
            self.futures: list[Future[Any]] = []

        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            future = super().submit(fn, *args, **kwargs)
            self.futures = [other for other in self.futures if not other.done()] + [future]
            return future

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)

    async def main() -> Any:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        loop.set_default_executor(threads)
        cancelled = False
        timer: asyncio.TimerHandle | None = None

        def cancel() -> None:
            nonlocal cancelled, timer
            if task is not None and not (limit.told and limit.in_grace()):
                cancelled = limit.told = True
                task.cancel()
            timer = loop.call_later(AGAIN_S, cancel)

        if limit.seconds is not None:
            timer = loop.call_later(limit.seconds, cancel)
        try:
            return await call()
        except asyncio.CancelledError as error:
            if cancelled:
                raise limit.error() from error
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def run_loop() -> Any:
        with asyncio.Runner() as runner:
            return runner.run(main())

    threads = Threads()
    end = _run(run_loop, limit, alarm, is_async=True)
    until = None if limit.seconds is None else max(0, limit.started + limit.seconds - time.monotonic())
    try:
        end.abandoned = len(wait(threads.futures, until).not_done)
    except KeyboardInterrupt as error:
        end.raised = error
    if not end.abandoned:
        ThreadPoolExecutor.shutdown(threads)
    return end
