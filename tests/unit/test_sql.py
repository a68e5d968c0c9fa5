"""Every SQL file: one statement that fits the schema, with a head that says what it does, and in use."""

from __future__ import annotations

import ast
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from mayflymq.backends.sqlite import backend as implementation
from mayflymq.backends.sqlite import database
from mayflymq.model import State

SOURCE = Path(implementation.__file__)
FILES = sorted((SOURCE.parent / "sql").glob("*.sql"))
TEXTS = [
    node.value
    for source in sorted(SOURCE.parent.glob("*.py"))
    for node in ast.walk(ast.parse(source.read_text("utf-8")))
    if isinstance(node, ast.Constant) and isinstance(node.value, str)
]


@pytest.fixture(scope="module")
def empty() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    for migration in database.migrations():
        connection.executescript(migration.read_text("utf-8"))
    yield connection
    connection.close()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_statement_loads_and_fits_the_schema(empty: sqlite3.Connection, file: Path) -> None:
    text = implementation.sql(file.stem)
    lines = text.splitlines()
    assert lines[0].startswith("-- "), "a head says what it does"
    assert max(map(len, lines)) <= 120
    values = dict.fromkeys(re.findall(r":([a-z_]+)", re.sub("--.*", "", text)))
    assert empty.execute(f"EXPLAIN {text}", values).fetchall(), "sqlite3 refuses more than one statement"


def test_each_file_is_used_and_each_statement_has_its_file() -> None:
    files = {file.stem for file in FILES}
    listed = {f"list_{state}" for state in State if not state.terminal}  # named by an f-string
    assert files - listed <= set(TEXTS)
    assert listed <= files
    calls = re.findall(r'(?:\.rows?|_sql)\(\s*"(\w+)"', SOURCE.read_text("utf-8"))
    assert set(calls) <= files


def test_no_other_sql_stands_in_the_code() -> None:
    sql = re.compile(r"\s*(INSERT|UPDATE|DELETE|WITH|CREATE|ALTER|DROP|SELECT)\b")
    assert [text for text in TEXTS if sql.match(text)] == ["SELECT 1 FROM sqlite_master LIMIT 1"]
