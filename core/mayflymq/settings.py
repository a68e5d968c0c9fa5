"""What the functions and the command line read from the environment, once. The only module that imports
pydantic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import Field, ValidationError, field_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from .codec import MAX_PAYLOAD_BYTES, MAX_RESULT_BYTES
from .errors import ConfigurationError
from .model import MAX_BATCH, check_queue, shown

PREFIX = "MAYFLYMQ_"
DAY = 86_400.0
MAX_RETENTION = 36_500 * DAY
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

# What a value must be that pydantic cannot read as the setting's type.
MUST_BE = {
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number of seconds, without a unit",
    "bool_parsing": "true or false",
}

Batch = Annotated[int, Field(ge=1, le=MAX_BATCH)]


class Settings(BaseSettings):
    """The settings, each from the variable MAYFLYMQ_<NAME>. Durations are in seconds.

    `queues` and `tasks` are comma-separated; a queue may carry a weight, as in "emails:3,default:1"; without
    `queues` a worker takes those that its tasks name.

    `retention_completed` is for how long completed and cancelled jobs stay, `retention_failed` failed and
    expired ones, before a sweep removes them; 0 keeps them for ever.

    `doorbell` wakes workers: `sqs:<queue url>`, `lambda:<function name>`, or empty for none. `tick_interval`
    lets one invocation of the promoter make a tick every so many seconds until its time is up, where the
    schedule alone is not precise enough. The function then runs all the time, and is paid for: 2.6 million
    seconds a month, at 128 MB about 324,000 GB-s, some 5 dollars.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, env_ignore_empty=True, extra="forbid", hide_input_in_errors=True
    )

    backend_url: str = Field(default="sqlite:///mayflymq.db", min_length=1, repr=False)
    queues: str | None = None
    tasks: str = ""
    stalled_threshold: float = Field(default=30.0, gt=0, le=DAY, allow_inf_nan=False)
    enable_stalled_check: bool = True
    max_stalls: int = Field(default=3, ge=0)
    margin: float = Field(default=1.0, ge=0, le=DAY, allow_inf_nan=False)
    concurrency: int = Field(default=1, ge=1)
    prefetch: Batch = 1
    limit: int | None = Field(default=None, ge=1)
    max_payload_bytes: int = Field(default=MAX_PAYLOAD_BYTES, ge=1)
    max_result_bytes: int = Field(default=MAX_RESULT_BYTES, ge=1)
    sweep_limit: Batch = 100
    promote_limit: Batch = MAX_BATCH
    retention_completed: float = Field(default=DAY, ge=0, le=MAX_RETENTION, allow_inf_nan=False)
    retention_failed: float = Field(default=14 * DAY, ge=0, le=MAX_RETENTION, allow_inf_nan=False)
    doorbell: str = ""
    tick_interval: float | None = Field(default=None, ge=1, le=900, allow_inf_nan=False)
    log_level: str = "INFO"
    allow_local_backend: bool = False

    @field_validator("queues")
    @classmethod
    def _check_queues(cls, value: str | None) -> str | None:
        if value is not None:
            _weights(value)
        return value

    @field_validator("log_level")
    @classmethod
    def _check_log_level(cls, value: str) -> str:
        if value.upper() not in LOG_LEVELS:
            raise ValueError(f"must be one of {', '.join(LOG_LEVELS)}")
        return value.upper()

    def queue_weights(self, of_tasks: Iterable[str]) -> dict[str, int]:
        """The queues with their weights, in the order given; where none are given, those of the tasks, else
        `default`."""
        if self.queues is not None:
            return _weights(self.queues)
        return dict.fromkeys(of_tasks, 1) or {"default": 1}

    @property
    def task_modules(self) -> tuple[str, ...]:
        """The modules that define tasks."""
        return tuple(name.strip() for name in self.tasks.split(",") if name.strip())


def _weights(text: str) -> dict[str, int]:
    weights: dict[str, int] = {}
    for part in text.split(","):
        name, colon, weight = (piece.strip() for piece in part.partition(":"))
        if not name and not colon:
            raise ValueError(f"{shown(text)} has an empty entry")
        if check_queue(name) in weights:
            raise ValueError(f"names the queue {name} twice")
        if colon and not (weight.isascii() and weight.isdigit() and 1 <= int(weight) <= 1000):
            raise ValueError(f"gives the queue {name} a weight that is not a whole number from 1 to 1000")
        weights[name] = int(weight) if colon else 1
    return weights


def load_settings(*, called: Mapping[str, str] | None = None, **explicit: Any) -> Settings:
    """The settings: what is given here (None counts as not given), else the environment, else the defaults.

    Raises ConfigurationError that names each wrong variable, or what is wrong of what is given here: by its
    own name, or as `called` has it. It never shows the backend's URL, which may hold a password.
    """
    given = {name: value for name, value in explicit.items() if value is not None}
    names = {name: name for name in given} | dict(called or {})
    try:
        return Settings(**given)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False)
        wrong = [f"{_source(fault['loc'], given, names)}: {_what_is_wrong(fault)}" for fault in faults]
        # Not chained: pydantic's own error says the same at length, and must never show a value.
        raise ConfigurationError("; ".join(wrong)) from None


def _what_is_wrong(fault: ErrorDetails) -> str:
    """The fault in our words, with the value, unless that is the backend's URL."""
    if fault["loc"] == ("backend_url",):
        empty = fault["type"] == "string_too_short"
        return "the URL is empty" if empty else "the URL must be text"
    said = fault["msg"].removeprefix("Value error, ")
    if fault["type"] in MUST_BE:
        said = f"Input should be {MUST_BE[fault['type']]}"
    return said.replace("Input should be", f"{shown(fault['input'])} must be")


def _source(place: tuple[int | str, ...], given: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Where the wrong value came from, by the name that whoever gave it knows."""
    setting = str(place[0])
    return names[setting] if setting in given else PREFIX + setting.upper()
