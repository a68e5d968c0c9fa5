"""The promise report has to be able to fail, or its table says nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.promises import HERE, Evidence, Table, load, problems, render, run

TABLE = """
built = ["memory", "sqlite"]
done = ["core"]
backends = ["memory", "sqlite", "redis"]
elsewhere = ["library", "functions"]

[promises]
D1 = { batch = "core", on = "backends", title = "At least once" }
C7 = { batch = "core", on = ["sqlite", "redis"], title = "Restarts" }
F6 = { batch = "core", on = ["functions"], title = "No logic" }
G1 = { batch = "contract", on = "backends", title = "Unique ids" }
"""

WHOLE = [
    Evidence("t::both", "D1", ("memory",)),
    Evidence("t::both", "D1", ("sqlite",)),
    Evidence("t::restart", "C7", ("sqlite",)),
    Evidence("t::handlers", "F6", ("functions",)),
]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    path = tmp_path / "promises.toml"
    path.write_text(TABLE)
    return load(path)


def test_the_projects_own_table_loads() -> None:
    table = load(HERE / "promises.toml")
    assert table.promises["C10"].on == ("memory",)
    assert "memory" not in table.promises["C7"].on


def test_a_whole_table_has_no_problems(table: Table) -> None:
    # redis is not built and the batch of G1 is not done: their empty cells are no failures.
    assert problems(table, WHOLE) == []


def test_each_missing_cell_is_a_problem(table: Table) -> None:
    assert problems(table, WHOLE[1:]) == ["D1 has no test for memory: At least once"]
    assert problems(table, WHOLE[:-1]) == ["F6 has no test for functions: No logic"]


def test_an_unknown_id_or_column_is_a_problem(table: Table) -> None:
    assert problems(table, [*WHOLE, Evidence("t::typo", "D99", ("memory",))]) == [
        "t::typo proves 'D99', which is no promise"
    ]
    assert problems(table, [*WHOLE, Evidence("t::typo", "D1", ("sqlit",))]) == [
        "t::typo counts for 'sqlit', which is no backend"
    ]


def test_the_table_shows_counts_empty_cells_and_where_a_line_does_not_apply(table: Table) -> None:
    head, *lines = render(table, WHOLE).splitlines()
    assert head.split() == ["memory", "sqlite", "library", "functions"]  # and not redis, which is not built
    rows = {line.split()[0]: line.split()[1:5] for line in lines}
    assert rows["D1"] == ["1", "1", "-", "-"]
    assert rows["C7"] == ["-", "1", "-", "-"]
    assert rows["F6"] == ["-", "-", "-", "1"]
    assert rows["G1"] == ["0", "0", "-", "-"]


def test_an_unknown_promise_to_show_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(HERE, HERE / "promises.toml", ["D1", "ZZ"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert "no promise ZZ; these are: D1 " in printed.err


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (("", ""), 0, "0 problems"),
        (('"sqlite"]', "]"), 1, "D1 has no test for sqlite"),
        (('"F6"', '"F7"'), 1, "'F7', which is no promise"),
        (("import pytest", "import pytest\n@pytest.mark.skip\n"), 1, "D1 has no test for memory"),
        (("import pytest", "import pytest, no_such_module"), 1, "test_all.py cannot be collected"),
    ],
)
def test_the_command_reads_a_suite_and_its_exit_code_says_it(
    tmp_path: Path, change: tuple[str, str], code: int, says: str
) -> None:
    suite = """
import pytest

@pytest.mark.promise("D1")
@pytest.mark.parametrize("harness", ["memory", "sqlite"])
@pytest.mark.parametrize("other", ["x", "redis"])
def test_both(harness, other): ...

@pytest.mark.promise("C7", backends=("sqlite",))
@pytest.mark.promise("F6", backends=("functions",))
def test_stated(): ...
"""
    (tmp_path / "promises.toml").write_text(TABLE)
    (tmp_path / "test_all.py").write_text(suite.replace(*change, 1))
    program = (
        "import pathlib, sys; from tests.promises import run; "
        "p = pathlib.Path(sys.argv[1]); sys.exit(run(p, p / 'promises.toml'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], cwd=HERE.parent, capture_output=True, text=True
    )
    assert says in done.stdout, done.stdout + done.stderr
    assert done.returncode == code
