"""MayflyMQ: a job queue whose workers live for one invocation.

Delivery is at least once: a handler may see a job again after a crash or a lost connection, so make it
idempotent.
"""

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
    CatchUp,
    Dedup,
    DedupMode,
    Enqueued,
    EnqueueStatus,
    Job,
    JobError,
    NewJob,
    ParentPolicy,
    Schedule,
    State,
)
from .queue import Queue, connect, default_backend
from .tasks import CurrentJob, JobSpec, Registry, Task, current_job, registry, task
from .worker import RunReport, claim_and_run

__all__ = [
    "Backend",
    "BackendError",
    "Backoff",
    "CatchUp",
    "ConfigurationError",
    "CorruptRecord",
    "CurrentJob",
    "Dedup",
    "DedupMode",
    "Defer",
    "Discard",
    "EnqueueStatus",
    "Enqueued",
    "Event",
    "InvalidJob",
    "Job",
    "JobError",
    "JobSpec",
    "MayflyError",
    "NewJob",
    "ParentPolicy",
    "PayloadTooLarge",
    "PromoteReport",
    "Queue",
    "Registry",
    "Retention",
    "Retry",
    "RunReport",
    "Schedule",
    "SchemaMismatch",
    "State",
    "SweepReport",
    "Task",
    "TaskSignal",
    "TaskTimeout",
    "UnknownTask",
    "Unsupported",
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
