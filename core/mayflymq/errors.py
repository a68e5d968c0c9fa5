"""What can go wrong, as one tree of public errors; what a task raises to steer its own job is another tree.

Every message names what was wrong and what to do about it. No message holds a password: URLs pass through
`redacted()` first.
"""

from datetime import timedelta


class MayflyError(Exception):
    """The root of every error that this library raises at its callers."""


class ConfigurationError(MayflyError):
    """A setting, a URL or the environment cannot work; the message names the setting and the way out."""


class InvalidJob(MayflyError, ValueError):
    """A value that cannot be meant, refused before anything is written."""


class PayloadTooLarge(InvalidJob):
    """Arguments or a result over the size limit."""


class UnknownTask(MayflyError, LookupError):
    """No task of that name is registered in this process."""


class Unsupported(MayflyError):
    """This backend lacks the capability that the call needs; `backend.capabilities` says which it has."""


class BackendError(MayflyError):
    """The store refused or could not be reached.

    `transient` is True where the same call may succeed later (a lost connection, a busy store), False where
    somebody has to act (a full disk, a missing schema).
    """

    def __init__(self, message: str, *, transient: bool) -> None:
        super().__init__(message)
        self.transient = transient


class SchemaMismatch(BackendError):
    """The store's schema is missing, older or newer than this library; the message says what to run."""

    def __init__(self, message: str) -> None:
        super().__init__(message, transient=False)


class CorruptRecord(BackendError):
    """A stored record cannot be read; the message names the job."""

    def __init__(self, message: str) -> None:
        super().__init__(message, transient=False)


class TaskSignal(Exception):
    """The root of what a task raises to steer its own job. None of these is a fault of the task."""


class Retry(TaskSignal):
    """Run the job again later; counts as a failure, so `max_retries` still holds.

    `after` is a delay in seconds (or a timedelta); None takes the task's backoff.
    """

    def __init__(
        self, reason: str = "the task asked for a retry", *, after: float | timedelta | None = None
    ) -> None:
        super().__init__(reason)
        self.after = after


class Defer(TaskSignal):
    """Run the job again after `after` seconds (or a timedelta); counts as nothing."""

    def __init__(self, *, after: float | timedelta) -> None:
        super().__init__("the task deferred its job")
        self.after = after


class Discard(TaskSignal):
    """Fail the job at once, whatever retries are left."""


class TaskTimeout(BaseException):
    """Raised inside a handler that is still running at its time limit or at the deadline margin (promise F2).

    A BaseException, so that a handler's `except Exception` does not swallow it and leave the platform to kill
    the process with nothing recorded.
    """


def redacted(url: str) -> str:
    """The URL with its password, and every query value, replaced by `***`: safe to log and to raise."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    # Up to the last @: a password that was not percent-encoded may hold any of the characters that end a
    # user, a host or a path.
    credentials, at, rest = rest.rpartition("@")
    user = credentials.replace("/", ":").replace("?", ":").partition(":")[0]
    rest, _, query = rest.partition("?")
    names = [pair.partition("=")[0] for pair in query.split("&") if pair]
    shown = f"{user}{'' if user == credentials else ':***'}{at}{rest}"
    return f"{scheme}{separator}{shown}" + ("?" + "&".join(f"{n}=***" for n in names) if names else "")
