"""What imports what, and what importing costs: on a cold start both are paid by every invocation."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "core" / "mayflymq"
FUNCTIONS = ROOT / "functions"

# Each unit and the units it may import, from the bottom up. A unit is a module; `aws`, `cli` and each backend
# are one unit however many modules they have, and import freely within it. "mayflymq" is the package's
# __init__.
PURE = {"errors", "model", "lifecycle", "codec"}
BACKEND = PURE | {"backends.base"}
FACADE = BACKEND | {"events", "tasks", "queue", "schedules", "backends"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "model": {"errors"},
    "lifecycle": {"errors", "model"},
    "codec": {"errors", "model"},
    "events": PURE,
    "schedules": PURE,
    "tasks": PURE | {"events"},
    "backends.base": PURE,
    "backends.memory": BACKEND,
    "backends.sqlite": BACKEND,
    "backends.redis": BACKEND,
    "backends": BACKEND | {"backends.memory", "backends.sqlite", "backends.redis"},
    "queue": FACADE - {"queue"},
    "maintenance": FACADE,
    "timelimit": {"errors"},
    "claims": FACADE,
    "worker": FACADE | {"claims", "timelimit"},
    # Read at the edge only: what stands above this line takes plain arguments.
    "settings": PURE,
    "mayflymq": FACADE | {"maintenance", "worker"},
    "aws": FACADE | {"maintenance", "worker", "settings", "mayflymq"},
    # aws for the doorbell only, which imports nothing of AWS before it is rung.
    "cli": FACADE | {"maintenance", "worker", "settings", "mayflymq", "aws"},
    "__main__": {"cli"},
    # For users' own tests; nothing of the package imports it.
    "testing": FACADE | {"maintenance", "worker", "mayflymq"},
}
# open_backend() is the one place that turns a URL into a backend's module.
MAY_IMPORT["backends.base"] |= {"backends.memory", "backends.sqlite", "backends.redis"}

DRIVERS = {"redis", "psycopg", "pymongo", "pika", "sqlite3"}
HEAVY = {"boto3", "botocore", "aws_lambda_powertools", "pydantic", "typer", "rich", "cronsim", "asyncio"}


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name below it; "" is the package itself."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def unit_of(module: str) -> str:
    first, *rest = module.split(".")
    if first == "backends" and rest:
        return f"backends.{rest[0]}"
    return first or "mayflymq"


def imports_of(module: str, path: Path, known: set[str]) -> Iterator[tuple[int, str]]:
    """Line and name of each module of ours that `module` imports, function-level imports included."""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    package = [part for part in package if part]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "mayflymq":
                    yield node.lineno, alias.name.partition(".")[2]
        elif isinstance(node, ast.ImportFrom):
            base = node.module.split(".") if node.module else []
            if node.level:
                base = package[: len(package) - node.level + 1] + base
            elif base[0] == "mayflymq":
                base = base[1:]
            else:
                continue
            for alias in node.names:
                name = ".".join([*base, alias.name])
                yield node.lineno, name if name in known else ".".join(base)


def test_import_direction() -> None:
    known = modules()
    wrong = []
    for module, path in known.items():
        unit = unit_of(module)
        where = path.relative_to(ROOT)
        if unit not in MAY_IMPORT:
            wrong.append(f"{where}: give {unit!r} its place in MAY_IMPORT")
            continue
        for line, target in imports_of(module, path, set(known)):
            other = unit_of(target)
            if other != unit and other not in MAY_IMPORT[unit]:
                wrong.append(f"{where}:{line}: {unit} may not import {other}")
    assert known
    assert not wrong, "\n".join(wrong)


def test_import_direction_reads_every_form(tmp_path: Path) -> None:
    path = tmp_path / "backend.py"
    path.write_text(
        "import json, mayflymq.queue\nfrom ...errors import X\nfrom .. import base\n"
        "from mayflymq import model, Queue\ndef f():\n    from .sql import y\n"
    )
    known = {"", "queue", "errors", "model", "backends.base", "backends.sqlite", "backends.sqlite.sql"}
    found = [name for _, name in imports_of("backends.sqlite.backend", path, known)]
    assert found == ["queue", "errors", "backends.base", "model", "", "backends.sqlite.sql"]


@pytest.mark.promise("F6", backends=("functions",))
def test_functions_are_thin() -> None:
    files = {path.stem: path for path in FUNCTIONS.glob("*.py")}
    assert files.keys() >= {"enqueue", "claim_and_run", "stalled_sweep", "delayed_promoter"}
    for path in files.values():
        source = path.read_text(encoding="utf-8")
        imported = set()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.split(".")[0])
        assert not imported & DRIVERS, f"{path.name} imports a driver"
        # tasks.py stands for a user's own code, so it may be as long as it likes.
        if path.name != "tasks.py":
            assert len(source.splitlines()) < 20, f"{path.name} is not under 20 lines"


def fresh(program: str) -> str:
    """What `program` prints in a new interpreter that reads no PYTHON* variables and no user site."""
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def newly_imported() -> list[str]:
    """The modules that `import mayflymq` brings into a fresh interpreter, each after its parent."""
    program = "import sys; before = set(sys.modules); import mayflymq; print(*sys.modules.keys() - before)"
    return sorted(fresh(program).split())


def test_importing_the_package_loads_only_itself_and_the_standard_library() -> None:
    loaded = {name.split(".")[0] for name in newly_imported()}
    assert not loaded & (DRIVERS | HEAVY)
    assert loaded - sys.stdlib_module_names == {"mayflymq"}


def test_import_budget() -> None:
    """Importing the package takes at most 3 times what the standard-library modules it uses take."""
    needs = [name for name in newly_imported() if name.split(".")[0] in sys.stdlib_module_names]
    clock = "import time; start = time.process_time(); import {}; print(time.process_time() - start)"
    ours, theirs = clock.format("mayflymq"), clock.format(", ".join(needs))
    # Processor time, and the best of interleaved runs: noise only ever adds, and slow spells hit both alike.
    pairs = [(float(fresh(ours)), float(fresh(theirs))) for _ in range(10)]
    ratio = min(mine for mine, _ in pairs) / min(base for _, base in pairs)
    assert ratio <= 3, f"import mayflymq takes {ratio:.1f} times its {len(needs)} standard-library modules"
