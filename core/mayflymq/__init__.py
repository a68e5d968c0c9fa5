"""MayflyMQ: a job queue whose workers live for one invocation.

Delivery is at least once: a handler may see a job again after a crash or a lost connection, so make it
idempotent.
"""

from typing import TYPE_CHECKING

from .backends.base import Backend, open_backend
from .errors import (
    BackendError,
    ConfigurationError,
    CorruptRecord,
    Defer,
    Discard,
    InvalidJob,
    MayflyError,
    PayloadTooLarge,
    Retry,
    SchemaMismatch,
    TaskSignal,
    TaskTimeout,
    UnknownTask,
    Unsupported,
)
from .events import Event, listen
from .maintenance import PromoteReport, Retention, SweepReport, promote, sweep
from .model import (
    Backoff,
    Cancelled,
    CancelStatus,
    CatchUp,
    Counts,
    Dedup,
    DedupMode,
    Dependant,
    Drained,
    Dropped,
    Enqueued,
    EnqueueStatus,
    Job,
    JobError,
    JobPage,
    NewJob,
    ParentPolicy,
    QueueInfo,
    Removed,
    Retried,
    RetryStatus,
    Schedule,
    State,
    StoredSchedule,
    WorkerInfo,
)
from .queue import Queue, connect, default_backend
from .tasks import CurrentJob, JobOptions, JobSpec, Registry, Task, current_job, registry, task
from .worker import RunReport, claim_and_run

__all__ = [
    "Backend",
    "BackendError",
    "Backoff",
    "CancelStatus",
    "Cancelled",
    "CatchUp",
    "ConfigurationError",
    "CorruptRecord",
    "Counts",
    "CurrentJob",
    "Dedup",
    "DedupMode",
    "Defer",
    "Dependant",
    "Discard",
    "Drained",
    "Dropped",
    "EnqueueStatus",
    "Enqueued",
    "Event",
    "InvalidJob",
    "Job",
    "JobError",
    "JobOptions",
    "JobPage",
    "JobSpec",
    "MayflyError",
    "NewJob",
    "ParentPolicy",
    "PayloadTooLarge",
    "PromoteReport",
    "Queue",
    "QueueInfo",
    "Registry",
    "Removed",
    "Retention",
    "Retried",
    "Retry",
    "RetryStatus",
    "RunReport",
    "Schedule",
    "SchemaMismatch",
    "State",
    "StoredSchedule",
    "SweepReport",
    "Task",
    "TaskSignal",
    "TaskTimeout",
    "UnknownTask",
    "Unsupported",
    "WorkerInfo",
    "claim_and_run",
    "connect",
    "current_job",
    "default_backend",
    "listen",
    "open_backend",
    "promote",
    "registry",
    "sweep",
    "task",
]

__version__: str

if not TYPE_CHECKING:  # else a type checker would take any name for one of this package

    def __getattr__(name: str) -> str:
        # The version is looked up when it is asked for: on a cold start nobody does.
        if name == "__version__":
            from importlib.metadata import version

            return version("mayflymq")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
