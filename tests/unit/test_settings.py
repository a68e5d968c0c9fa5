"""Settings are checked once, at the edge, and no error shows a password."""

import traceback

import pytest
from pydantic import ValidationError

from mayflymq import codec, queue
from mayflymq.errors import ConfigurationError
from mayflymq.settings import Settings, load_settings
from mayflymq.tasks import Registry, Task


def test_the_defaults() -> None:
    settings = load_settings()
    assert settings.backend_url == queue.DEFAULT_URL
    assert settings.queue_weights([]) == {"default": 1}
    assert settings.task_modules == ()
    assert (settings.stalled_threshold, settings.enable_stalled_check, settings.max_stalls) == (30.0, True, 3)
    assert (settings.margin, settings.concurrency, settings.prefetch, settings.limit) == (1.0, 1, 1, None)
    assert settings.max_payload_bytes == codec.MAX_PAYLOAD_BYTES
    assert settings.max_result_bytes == codec.MAX_RESULT_BYTES
    assert (settings.sweep_limit, settings.promote_limit) == (100, 1000)
    assert (settings.retention_completed, settings.retention_failed) == (24 * 3600, 14 * 24 * 3600)
    assert (settings.log_level, settings.allow_local_backend) == ("INFO", False)
    assert (settings.doorbell, settings.tick_interval) == ("", None)


def test_each_setting_has_a_variable_and_what_is_given_beats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAYFLYMQ_STALLED_THRESHOLD", "5.5")
    monkeypatch.setenv("MAYFLYMQ_CONCURRENCY", "4")
    monkeypatch.setenv("MAYFLYMQ_ENABLE_STALLED_CHECK", "false")
    settings = load_settings(concurrency=2, enable_stalled_check=None)
    assert settings.stalled_threshold == 5.5
    assert settings.concurrency == 2
    assert settings.enable_stalled_check is False


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAYFLYMQ_LIMIT", "")
    monkeypatch.setenv("MAYFLYMQ_BACKEND_URL", "")
    assert load_settings().limit is None
    assert load_settings().backend_url == queue.DEFAULT_URL


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError):
        load_settings().concurrency = 2


def test_queues_with_weights_and_task_modules() -> None:
    settings = load_settings(queues=" emails:3, default ,x:1000", tasks="app.tasks, other ,")
    weights = settings.queue_weights([])
    assert list(weights.items()) == [("emails", 3), ("default", 1), ("x", 1000)]
    assert settings.task_modules == ("app.tasks", "other")


def test_without_queues_they_are_those_of_the_tasks() -> None:
    tasks = Registry()
    for name, its_queue in (("a", "z"), ("b", "emails"), ("c", "z")):
        tasks.add(Task(name=name, fn=print, queue=its_queue))
    assert load_settings().queue_weights(tasks.queues) == {"emails": 1, "z": 1}
    assert load_settings(queues="x").queue_weights(tasks.queues) == {"x": 1}


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("queues", "a,a", "names the queue a twice"),
        ("queues", "a:0", "weight"),
        ("queues", "a:-1", "weight"),
        ("queues", "a:1.5", "weight"),
        ("queues", "a:", "weight"),
        ("queues", "a:1001", "weight"),
        ("queues", "a:٣", "weight"),
        ("queues", "a:1:2", "weight"),
        ("queues", "a b", "cannot name a queue"),
        ("queues", "a,,b", "'a,,b' has an empty entry"),
        ("queues", "q.dlq", "cannot name a queue"),
        ("log_level", "LOUD", "must be one of DEBUG, INFO"),
        ("stalled_threshold", "0", "greater than 0"),
        ("stalled_threshold", "nan", "finite"),
        ("stalled_threshold", "inf", "finite|less than"),
        ("stalled_threshold", "soon", "'soon' must be a number of seconds, without a unit$"),
        ("margin", "-1", "greater than or equal to 0"),
        ("max_stalls", "-1", "greater than or equal to 0"),
        ("concurrency", "0", "'0' must be greater than or equal to 1"),
        ("concurrency", "two", "'two' must be a whole number$"),
        ("prefetch", "1001", "less than or equal to 1000"),
        ("limit", "0", "greater than or equal to 1"),
        ("sweep_limit", "1001", "less than or equal to 1000"),
        ("promote_limit", "0", "greater than or equal to 1"),
        ("max_payload_bytes", "1.5", "'1.5' must be a whole number$"),
        ("enable_stalled_check", "perhaps", "'perhaps' must be true or false$"),
        ("retention_completed", "-1", "greater than or equal to 0"),
        ("retention_failed", "inf", "finite|less than"),
        ("retention_failed", "14d", "'14d' must be a number of seconds, without a unit$"),
    ],
)
def test_a_wrong_setting_names_its_variable(
    name: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"MAYFLYMQ_{name.upper()}", value)
    with pytest.raises(ConfigurationError, match=rf"^MAYFLYMQ_{name.upper()}: .*({says})"):
        load_settings()


def test_all_that_is_wrong_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAYFLYMQ_CONCURRENCY", "0")
    monkeypatch.setenv("MAYFLYMQ_LOG_LEVEL", "loud")
    with pytest.raises(ConfigurationError, match=r"MAYFLYMQ_CONCURRENCY: .*; MAYFLYMQ_LOG_LEVEL: must be"):
        load_settings()


def test_what_was_given_is_named_as_whoever_gave_it_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAYFLYMQ_LIMIT", "0")
    monkeypatch.setenv("MAYFLYMQ_CONCURRENCY", "4")  # right, and not what was used
    with pytest.raises(ConfigurationError, match=r"^--queue: .*; concurrency: .*; MAYFLYMQ_LIMIT: [^;]*$"):
        load_settings(called={"queues": "--queue"}, queues="a:0", concurrency=0)


def test_an_empty_url_that_is_given_is_no_default() -> None:
    with pytest.raises(ConfigurationError, match=r"^--backend: the URL is empty$"):
        load_settings(called={"backend_url": "--backend"}, backend_url="")


def test_a_setting_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"^concurency: "):
        load_settings(concurency=2)


def test_the_level_is_read_in_any_case() -> None:
    assert load_settings(log_level="debug").log_level == "DEBUG"


def test_no_password_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "redis://user:S3CRET@host/0"
    assert "S3CRET" not in repr(load_settings(backend_url=url))
    assert "S3CRET" not in str(load_settings(backend_url=url))
    monkeypatch.setenv("MAYFLYMQ_BACKEND_URL", url)
    for wrong in ({"concurrency": 0}, {"backend_url": [url]}, {"backend_url": url.encode() + b"\xff"}):
        with pytest.raises(ConfigurationError) as caught:
            load_settings(**wrong)
        assert "S3CRET" not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(ValidationError) as direct:
        Settings(backend_url=[url])  # type: ignore[arg-type]
    assert "S3CRET" not in str(direct.value)
