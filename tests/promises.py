"""The promise table: which tests prove which promise, for which backend.

    python tests/promises.py          prints the table; exits 1 when a promise lacks a test
    python tests/promises.py C4 D7    lists the tests behind these promises as well; exits 2 for others

A test names its promises with `@pytest.mark.promise("C4", "D7")`. It counts for the columns in the marker's
`backends=(...)`, else for the backend that its `harness` parameter names, else for the functions when it lies
in tests/functions/ and the promise is about them, else for the library. Tests that are skipped or expected to
fail prove nothing.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
HARNESS_FIXTURES = ("harness", "backend")


@dataclass(frozen=True, slots=True)
class Promise:
    id: str
    title: str
    batch: str
    on: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    promises: dict[str, Promise]
    backends: tuple[str, ...]
    elsewhere: tuple[str, ...]
    built: tuple[str, ...]
    done: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return self.backends + self.elsewhere

    @property
    def shown(self) -> tuple[str, ...]:
        """The columns that are printed: a backend that is not built has nothing to show."""
        return tuple(column for column in self.columns if column in self.built or column in self.elsewhere)

    def owes(self, promise: Promise, column: str) -> bool:
        """Whether a missing test for this cell is a failure today."""
        reachable = column in self.built or column in self.elsewhere
        return promise.batch in self.done and column in promise.on and reachable


@dataclass(frozen=True, slots=True)
class Evidence:
    """One test's claim to prove one promise."""

    test: str
    promise: str
    columns: tuple[str, ...]


@dataclass(eq=False)  # pytest keeps its plugins in sets
class Collector:
    """A pytest plugin that reads the promise markers of whatever was collected."""

    table: Table
    evidence: list[Evidence] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.broken.append(f"{report.nodeid or 'tests'} cannot be collected: {report.longreprtext}")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            if not _proves_nothing(item):
                self.evidence.extend(evidence_of(item, self.table))


def load(path: Path) -> Table:
    raw = tomllib.loads(path.read_text(encoding="utf-8"))
    backends, elsewhere = tuple(raw["backends"]), tuple(raw["elsewhere"])
    promises = {
        id: Promise(id, row["title"], row["batch"], backends if row["on"] == "backends" else tuple(row["on"]))
        for id, row in raw["promises"].items()
    }
    table = Table(promises, backends, elsewhere, tuple(raw["built"]), tuple(raw["done"]))
    named = {column for promise in promises.values() for column in promise.on} | set(table.built)
    if unknown := named - set(table.columns):
        raise ValueError(f"{path.name} names columns that it does not list: {', '.join(sorted(unknown))}")
    if unknown := set(table.done) - {promise.batch for promise in promises.values()}:
        raise ValueError(f"{path.name} lists batches that no promise has: {', '.join(sorted(unknown))}")
    return table


def evidence_of(item: pytest.Item, table: Table) -> Iterable[Evidence]:
    parametrised = _backends_of(item, table)
    for marker in item.iter_markers("promise"):
        stated = marker.kwargs.get("backends")
        for id in marker.args:
            yield Evidence(item.nodeid, id, tuple(stated or parametrised or [_home_of(item, id, table)]))


def _backends_of(item: pytest.Item, table: Table) -> list[str]:
    callspec = getattr(item, "callspec", None)
    for fixture in HARNESS_FIXTURES if callspec else ():
        if fixture not in callspec.params:
            continue
        value = callspec.params[fixture]
        name = value if isinstance(value, str) else getattr(value, "name", None)
        # A parameter that is a factory shows its backend only in the test's id.
        return (
            [name] if name in table.backends else [t for t in callspec.id.split("-") if t in table.backends]
        )
    return []


def _home_of(item: pytest.Item, id: str, table: Table) -> str:
    promise = table.promises.get(id)
    in_functions = "functions" in item.path.parent.parts[-2:]
    return "functions" if in_functions and promise and "functions" in promise.on else "library"


def _proves_nothing(item: pytest.Item) -> bool:
    skipped = any(all(marker.args[:1]) for marker in item.iter_markers("skipif"))
    return skipped or any(item.get_closest_marker(name) for name in ("skip", "xfail"))


def problems(table: Table, evidence: Iterable[Evidence]) -> list[str]:
    """What stops the table from being whole: empty cells, unknown ids, unknown columns."""
    evidence = list(evidence)
    found = [
        f"{e.test} proves {e.promise!r}, which is no promise"
        for e in evidence
        if e.promise not in table.promises
    ]
    found += [
        f"{e.test} counts for {column!r}, which is no backend"
        for e in evidence
        for column in e.columns
        if column not in table.columns
    ]
    proved = {(e.promise, column) for e in evidence for column in e.columns}
    found += [
        f"{promise.id} has no test for {column}: {promise.title}"
        for promise in table.promises.values()
        for column in table.columns
        if table.owes(promise, column) and (promise.id, column) not in proved
    ]
    return found


def render(table: Table, evidence: Iterable[Evidence]) -> str:
    counts: dict[tuple[str, str], int] = {}
    for e in evidence:
        for column in e.columns:
            counts[e.promise, column] = counts.get((e.promise, column), 0) + 1
    lines = [" ".join(["    ", *(f"{column:>9}" for column in table.shown)])]
    for promise in table.promises.values():
        cells = []
        for column in table.shown:
            count = counts.get((promise.id, column), 0)
            # Evidence beyond what is owed is shown too.
            cells.append(f"{count if count or column in promise.on else '-':>9}")
        lines.append(" ".join([f"{promise.id:<4}", *cells, "", promise.title]))
    return "\n".join(lines)


def run(tests: Path, table_path: Path, show: Sequence[str] = ()) -> int:
    """Collect `tests`, print the table, and return the exit code."""
    table = load(table_path)
    if unknown := [id for id in show if id not in table.promises]:
        print(f"no promise {', '.join(unknown)}; these are: {' '.join(table.promises)}", file=sys.stderr)
        return 2
    collector = Collector(table)
    # Without the terminal plugin pytest prints nothing of its own, "no tests ran" least of all.
    quiet = ["--collect-only", "-p", "no:terminal", "-p", "no:randomly", "-p", "no:cacheprovider"]
    code = pytest.main([str(tests), *quiet], plugins=[collector])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) and not collector.broken:
        collector.broken.append(f"pytest could not collect {tests.name}: exit code {int(code)}")
    print(render(table, collector.evidence))
    for id in show:
        for e in collector.evidence:
            if e.promise == id:
                print(f"{id} {', '.join(e.columns)}: {e.test}")
    found = collector.broken + problems(table, collector.evidence)
    print(f"\nbuilt: {', '.join(table.built)}; done: {', '.join(table.done)}; {len(found)} problems")
    for problem in found:
        print(f"  {problem}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(run(HERE, HERE / "promises.toml", sys.argv[1:]))
