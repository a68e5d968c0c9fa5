"""What only SQLite has: its file, what can be wrong with it, and its schema."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from mayflymq.backends.base import open_backend
from mayflymq.backends.sqlite import database
from mayflymq.backends.sqlite.backend import SqliteBackend
from mayflymq.errors import BackendError, ConfigurationError, SchemaMismatch
from mayflymq.model import Complete, NewJob, Settle, Severity
from tests.contract.bench import Bench, check_invariants
from tests.contract.harness import ManualClock

from .fault_sqlite import FAULTS
from .faultpoints import QUEUE, small_steps
from .situations import SITUATIONS, busy, claim, schedule
from .test_crashes import observe

SQLITE = ("sqlite",)
BIG = b'"' + b"x" * 200_000 + b'"'


@pytest.fixture(scope="module")
def faults() -> Iterator[FAULTS]:
    made = FAULTS()
    with small_steps():
        yield made
    made.close()


def job(id: str = "j", payload: bytes = b"{}") -> NewJob:
    return NewJob(id=id, queue=QUEUE, task="t", payload=payload)


def file(path: Path) -> SqliteBackend:
    return SqliteBackend(database.Database(path))


def pragma(connection: sqlite3.Connection, name: str) -> Any:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


# A machine that loses its power


@pytest.mark.promise("D1", "C7", backends=SQLITE)
def test_what_returned_is_on_the_disk(tmp_path: Path) -> None:
    backend = file(tmp_path / "a.db")
    backend.enqueue([job()])
    connection = backend._database._connect()
    assert pragma(connection, "journal_mode") == "wal"
    assert pragma(connection, "synchronous") == 2, "FULL: the log is on the disk at every commit"
    assert pragma(connection, "foreign_keys") == 1
    backend.close()


@pytest.mark.promise("D4", "D1", "G3", backends=SQLITE)
@pytest.mark.parametrize("name", ["settle: complete", "enqueue: parents, keys, refusals"])
def test_a_log_that_was_written_in_part_is_a_call_that_never_was(
    faults: FAULTS, tmp_path: Path, name: str
) -> None:
    faults.fresh(name)
    before = faults.contents()
    q = faults.bench()
    q.backend.queues([])  # its opening is in the log already
    log = Path(f"{faults.copy}-wal")
    start = log.stat().st_size
    SITUATIONS[name].call(q)
    page = 4096 + 24
    assert log.stat().st_size >= start + 3 * page, "a call of several pages"
    whole = log.read_bytes()
    after = faults.contents()
    assert after != before
    torn = tmp_path / "torn.db"
    for size in (*range(start, len(whole), page // 2), len(whole)):
        shutil.copyfile(faults.copy, torn)
        Path(f"{torn}-wal").write_bytes(whole[:size])
        with closing(sqlite3.connect(torn)) as connection:
            assert tuple(connection.iterdump()) == (after if size == len(whole) else before), size


# A disk that is full


class Refusing(sqlite3.Connection):
    """Has no room for its n-th statement."""

    room = -1

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        self.room -= 1
        if self.room == -1 and sql != "ROLLBACK":
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return super().execute(sql, *values)


@pytest.mark.promise("D4", "D1", backends=SQLITE)
@pytest.mark.parametrize("name", [name for name in SITUATIONS if SITUATIONS[name].arrange is busy])
def test_no_room_at_any_statement_changes_nothing_and_says_so(
    faults: FAULTS, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    call = SITUATIONS[name].call
    faults.fresh(name)
    q = faults.bench()
    call(q)
    once = observe(q)
    faults.fresh(name)
    before = faults.contents()
    connect = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda *args, **options: connect(*args, factory=Refusing, **options)
    )
    q = faults.bench()
    assert isinstance(q.backend, SqliteBackend)
    connection = q.backend._database._connect()
    assert isinstance(connection, Refusing)
    monkeypatch.undo()
    if not SITUATIONS[name].broker:
        before = faults.contents()
    takes_first = "token_of" in call.__code__.co_names  # a call before the call
    for room in count():
        connection.room = room
        if (refused := refusal(call, q)) is None:
            break
        assert "is full" in str(refused)
        assert not refused.transient
        assert takes_first or faults.contents() == before, f"no room at statement {room}"
    assert room > 2
    connection.room = -1
    assert observe(q) == once, "the same handle, once there is room"


def refusal(call: Callable[[Bench], object], q: Bench) -> BackendError | None:
    try:
        call(q)
    except BackendError as error:
        return error
    return None


LARGE: dict[str, Callable[[Bench], object]] = {
    "enqueue": lambda q: q.backend.enqueue([job("a"), job("b", BIG), job("c")]),
    "settle": lambda q: q.backend.settle([Settle(claim(q, "a1"), Complete(BIG))], q.request(2, token="t")),
    "put_schedule": lambda q: q.backend.put_schedule(replace(schedule(q, "large"), payload=BIG)),
}
"""Writes that need more room than there is."""


@pytest.mark.promise("D4", "D1", backends=SQLITE)
@pytest.mark.parametrize("name", LARGE)
def test_a_full_file_refuses_a_write_and_keeps_all_it_had(faults: FAULTS, name: str) -> None:
    faults.fresh("promote_due: to waiting and to blocked")
    with closing(sqlite3.connect(faults.copy)) as connection:
        pages = pragma(connection, "page_count")
    before = faults.contents()
    q = faults.bench(f"?max_page_count={pages + 20}")
    refused = refusal(LARGE[name], q)
    assert "is full" in str(refused)
    assert faults.contents() == before
    check_invariants(q.backend, QUEUE)
    assert q.beat(claim(q, "a1")) == "held", "what needs no room goes on"
    LARGE[name](faults.bench())
    check_invariants(q.backend, QUEUE)
    assert refusal(LARGE["enqueue"], q) is None or name != "enqueue", "sent again it needs no room"


@pytest.mark.promise("C8", "F3", backends=SQLITE)
def test_an_interrupted_wait_for_the_lock_leaves_no_transaction(tmp_path: Path) -> None:
    """Ctrl-C, or TaskTimeout, comes out of the statement that waited, when that has got the lock."""
    backend, other = file(tmp_path / "a.db"), file(tmp_path / "a.db")
    backend.migrate()

    def interrupt(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    locked = sqlite3.connect(tmp_path / "a.db", isolation_level=None, check_same_thread=False)
    locked.execute("BEGIN IMMEDIATE")
    letting_go = threading.Timer(0.3, lambda: locked.execute("ROLLBACK"))
    letting_go.start()
    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            backend.enqueue([job("a")])
    finally:
        signal.signal(signal.SIGALRM, previous)
        letting_go.join()
        locked.close()
    assert caught.traceback  # held, as while a worker winds up
    assert [one.enqueue([job("b")])[0].status for one in (other, backend)] == ["created", "duplicate_id"]
    assert backend.get(QUEUE, ["a"]) == [None]
    backend.close()
    other.close()


# A file that cannot be the store


def foreign(path: Path, version: int) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE songs (title)")
        connection.execute(f"PRAGMA user_version = {version}")


@pytest.mark.parametrize("version", [0, 1, 7])
def test_another_programs_database_is_refused_and_left_as_it_was(tmp_path: Path, version: int) -> None:
    foreign(tmp_path / "a.db", version)
    before = (tmp_path / "a.db").read_bytes()
    for call in (file(tmp_path / "a.db").migrate, lambda: file(tmp_path / "a.db").enqueue([job()])):
        with pytest.raises(SchemaMismatch, match=r"another program's tables: name another file"):
            call()
    assert (tmp_path / "a.db").read_bytes() == before
    assert [left.name for left in tmp_path.iterdir()] == ["a.db"]


def test_a_file_that_is_no_database_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_bytes(b"Dear diary, " * 1000)
    for call in (file(tmp_path / "a.db").migrate, lambda: file(tmp_path / "a.db").enqueue([job()])):
        with pytest.raises(BackendError, match="is not an SQLite database: name another file") as caught:
            call()
        assert not caught.value.transient
    assert (tmp_path / "a.db").read_bytes() == b"Dear diary, " * 1000


@pytest.mark.parametrize(
    ("name", "says"),
    [("missing/a.db", "its folder must exist and be writable"), ("", "is a folder: name a file in it")],
)
def test_a_missing_folder_and_a_folder_as_a_file(tmp_path: Path, name: str, says: str) -> None:
    for call in (file(tmp_path / name).migrate, lambda: file(tmp_path / name).enqueue([job()])):
        with pytest.raises(BackendError, match=says) as caught:
            call()
        assert not caught.value.transient


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "a.db").touch()
    backend = file(tmp_path / "a.db")
    assert backend.enqueue([job()])[0].status == "created"
    backend.close()


@pytest.mark.promise("S1", backends=SQLITE)
@pytest.mark.parametrize(
    "name", ["with space.db", "100%.db", "a%3Fb.db", "a%23b.db", "\u00fc\u4e2d.db", "file:a.db", "\udcff.db"]
)
def test_a_url_names_the_file_that_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    backend = open_backend(f"sqlite:///{name}")
    backend.enqueue([job()])
    assert (tmp_path / name.replace("%3F", "?").replace("%23", "#")).exists()
    monkeypatch.chdir("/")
    backend.close()  # the next call opens the same file again
    assert backend.get(QUEUE, ["j"]) != [None]
    backend.close()


@pytest.mark.promise("S1", backends=SQLITE)
@pytest.mark.parametrize("name", ["a#b.db", "a.db#", "a%00b.db", "\ud800.db", "", ":memory:", "a?b.db"])
def test_a_url_that_names_no_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError):
        open_backend(f"sqlite:///{name}").queues()
    assert list(tmp_path.iterdir()) == []


def test_a_schedule_that_cannot_be_read_hides_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    q = Bench(file(tmp_path / "a.db"), ManualClock(), QUEUE)
    for id in ("a", "b", "c"):
        q.backend.put_schedule(schedule(q, id))
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection, connection:
        connection.execute("UPDATE schedules SET backoff = '{' WHERE id = 'b'")
    assert [stored.schedule.id for stored in q.backend.list_schedules(QUEUE)] == ["a", "c"]
    assert [stored.schedule.id for stored in q.backend.due_schedules(QUEUE, 10).schedules] == ["a", "c"]
    assert "schedule b in q cannot be read" in caplog.text
    assert q.backend.remove_schedule(QUEUE, "b"), "the way out"
    q.backend.close()


# The schema


def schema(path: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        pragmas = [(name, pragma(connection, name)) for name in ("user_version", "application_id")]
        return (
            pragmas + connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()
        )


def more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str) -> None:
    """Gives the library a migration more than it has."""
    known = database.migrations()
    added = tmp_path / "9999_more.sql"
    added.write_text(script)
    monkeypatch.setattr(database, "migrations", lambda: [*known, added])


def made(path: Path) -> Path:
    backend = file(path)
    backend.enqueue([job()])
    backend.close()
    return path


def test_a_fresh_schema_equals_all_migrations_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = database.migrations()
    assert [int(script.name[:4]) for script in known] == list(range(1, len(known) + 1))
    assert file(tmp_path / "fresh.db").migrate() == len(known)
    for applied in range(1, len(known) + 1):
        monkeypatch.setattr(database, "migrations", lambda applied=applied: known[:applied])
        assert file(tmp_path / "stepwise.db").migrate() == applied
    assert schema(tmp_path / "stepwise.db") == schema(tmp_path / "fresh.db")
    assert file(tmp_path / "fresh.db").migrate() == len(known), "again: nothing to do"
    assert schema(tmp_path / "stepwise.db") == schema(tmp_path / "fresh.db")


def test_an_older_schema_is_refused_until_it_was_migrated_and_keeps_its_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(tmp_path / "a.db")
    newest = len(database.migrations()) + 1
    with monkeypatch.context() as patch:
        more(patch, tmp_path, "ALTER TABLE jobs ADD COLUMN colour TEXT;\nCREATE TABLE more (a);\n")
        with pytest.raises(SchemaMismatch, match=f"has schema {newest - 1}, .* run `mayflymq migrate`"):
            file(path).queues()
        assert file(path).migrate() == newest
        backend = file(path)
        assert [found and found.id for found in backend.get(QUEUE, ["j"])] == ["j"]
        backend.close()
    for call in (file(path).queues, file(path).migrate):
        with pytest.raises(SchemaMismatch, match=f"has schema {newest}, .* update mayflymq here"):
            call()


def test_a_migration_that_fails_leaves_the_store_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(tmp_path / "a.db")
    before = schema(path)
    with monkeypatch.context() as patch:
        more(patch, tmp_path, "CREATE TABLE more (a);\nCREATE TABLE jobs (a);\n")
        with pytest.raises(BackendError, match="already exists"):
            file(path).migrate()
    assert schema(path) == before
    backend = file(path)
    assert backend.get(QUEUE, ["j"]) != [None]
    assert [found.severity for found in backend.check()] == [Severity.OK]
    backend.close()


MIGRATORS = """
import os, sys
from mayflymq.backends.base import open_backend
from mayflymq.model import NewJob
for path in sys.argv[1:]:
    starting, start = os.pipe()
    children = []
    for n in range(8):
        children.append(os.fork())
        if children[-1] == 0:
            os.close(start)
            os.read(starting, 1)  # until all of them are here
            backend = open_backend(f"sqlite:///{path}", broker=n % 4 == 0)
            if n % 2:
                backend.migrate()
            backend.enqueue([NewJob(id=str(n), queue="q", task="t", payload=b"{}")])
            backend.close()
            os._exit(0)
    os.close(start)
    os.close(starting)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
"""


def test_many_migrators_at_once_on_a_fresh_file(tmp_path: Path) -> None:
    paths = [tmp_path / f"{n}.db" for n in range(4)]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", MIGRATORS, *map(str, paths)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    file(tmp_path / "one.db").migrate()
    for path in paths:
        assert schema(path) == schema(tmp_path / "one.db")
        backend = open_backend(f"sqlite:///{path}")
        assert backend.queues()[0].counts.waiting == 8
        assert len(backend.take_unpublished(QUEUE, 0, 100)) == 8
        backend.close()
