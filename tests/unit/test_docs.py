"""The pages of docs/: their blocks run, their links lead somewhere, and what they list is what there is."""

import re
import tomllib
from pathlib import Path

import pytest

import mayflymq
from mayflymq import Retention, claim_and_run, events
from mayflymq.backends.redis import keys
from mayflymq.model import State
from mayflymq.settings import Settings
from tests import api_page, documents
from tests.documents import ROOT, Block, blocks, built, missing, run_apart, with_table

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
README = ROOT / "README.md"
PROMISES = tomllib.loads((ROOT / "tests" / "promises.toml").read_text(encoding="utf-8"))["promises"]


def text_of(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def section(page: str, title: str) -> str:
    """What stands below a heading of the second rank, to the next one."""
    found = re.search(rf"^## {re.escape(title)}\n(.+?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert found, f"no section {title}"
    return found[1]


def test_there_are_the_pages_that_the_readme_lists() -> None:
    listed = re.findall(r"^- \[docs/(\w+\.md)\]", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == [page.name for page in PAGES]


# Blocks


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_of_a_page_works_as_it_stands(page: Path, tmp_path: Path) -> None:
    done = run_apart(page, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_few_blocks_are_only_shown(page: Path) -> None:
    found = [
        block for block in blocks(page.read_text(encoding="utf-8")) if block.language in ("python", "console")
    ]
    assert sum(not block.run for block in found) <= 1


PAGE = """
`made.py`:

```python
x = 1
```

```python
import made
print(made.x, "two", "three")
#> 1 ... three
```

```console
$ python -c "import made; print(made.x)"
1
$ echo b
```

<!-- shown, not run: it would fail -->
```console
$ false
```
"""


def test_a_page_is_run_in_order_and_what_it_shows_is_compared(tmp_path: Path) -> None:
    assert [(b.language, b.file, b.run) for b in blocks(PAGE)] == [
        ("python", "made.py", True),
        ("python", None, True),
        ("console", None, True),
        ("console", None, False),
    ]
    for changed, says in (
        (PAGE, None),
        (PAGE.replace("... three", "... four"), ":9: '1 ... four' is not in the output"),
        (PAGE.replace("\n1\n", "\n2\n"), ":15: '2' is not in the output"),
        (PAGE.replace("echo b", "false"), ":15: AssertionError"),
        (PAGE.replace("import made\nprint", "print"), ":9: NameError"),
        (PAGE.replace("not run", "run"), ":22: AssertionError"),
    ):
        directory = tmp_path / str(hash(changed))
        directory.mkdir()
        page = directory / "page.md"
        page.write_text(changed)
        done = run_apart(page, directory)
        assert (done.returncode, says is None or says in done.stderr) == (says is not None, True), done.stderr


def test_shown_lines_are_looked_for_in_order() -> None:
    printed = "a  b\nc 1 d\ne\n"
    assert missing(["a b", "c ... d", "e"], printed) is None
    assert missing(["a b", "..."], printed) is None
    assert missing(["e", "a b"], printed) == "a b"
    assert missing(["a"], printed) == "a"
    assert missing(["c 1 d"], "") == "c 1 d"
    assert Block(1, "console", "$ ls\nx\n").output == ["x"]


# Links


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: page.stem)
def test_relative_links_lead_to_what_is_there(page: Path) -> None:
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        if re.match(r"https?:", target):
            continue
        file = page if not name else page.parent / name
        if not file.exists() or (anchor and anchor not in anchors(file)):
            wrong.append(target)
    assert wrong == []


# What the pages say


@pytest.mark.promise("D2")
def test_the_delivery_page_lists_each_promise_once_and_says_how_to_be_idempotent() -> None:
    page = text_of("delivery.md")
    listed = re.findall(r"^- \*\*([A-Z]\d+)\*\*", section(page, "Every promise"), re.MULTILINE)
    assert listed == sorted(listed, key=listed.index)
    assert sorted(listed) == sorted(PROMISES)
    assert "handlers must be idempotent" in page
    for way in ("ON CONFLICT", "idempotency_key=job.id", "if target.exists()"):
        assert way in page
    assert len(re.findall(r"^\d\. ", section(page, "Why a job can come twice"), re.MULTILINE)) == 5


@pytest.mark.promise("D2")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_page_claims_exactly_once(page: Path) -> None:
    for line in page.read_text(encoding="utf-8").splitlines():
        assert not re.search(r"exactly.once", line, re.IGNORECASE) or "never called exactly-once" in line


@pytest.mark.promise("S3", backends=("memory", "sqlite", "redis"))
def test_the_table_of_backends_is_made_from_their_capabilities() -> None:
    page = text_of("backends.md")
    assert page == with_table(page), "out of date: run `python -m tests.documents --write`"


def test_an_outdated_table_is_noticed() -> None:
    page = text_of("backends.md")
    changed = page.replace("| durable | no |", "| durable | yes |")
    assert changed != page
    assert with_table(changed) == page


def test_the_reference_is_made_from_signatures_and_docstrings() -> None:
    page = text_of("reference.md")
    assert page == api_page.page(), "out of date: run `python -m tests.documents --write`"
    for said in ("max_retries: int = 3", "### Queue.enqueue_flow", "stalled_threshold_ms: int = 30000"):
        assert said in page
    assert not re.search(r"0x[0-9a-f]{6}|<factory>|<class", page)


def test_the_reference_has_an_entry_for_whatever_the_package_exports() -> None:
    entries = set(re.findall(r"^### (\w+)", text_of("reference.md"), re.MULTILINE))
    assert entries - set(mayflymq.__all__) == set(), "the page says that all of it is imported from mayflymq"
    # The contract for those who write a backend, and the instance of Registry.
    assert set(mayflymq.__all__) - entries == {"Backend", "registry"}


HEADINGS = {"memory": "Memory", "sqlite": "SQLite", "redis": "Redis"}


@pytest.mark.promise("S2", backends=("library",))
@pytest.mark.parametrize("backend", built())
def test_each_backend_says_what_it_keeps_orders_and_loses(backend: str) -> None:
    about = section(text_of("backends.md"), HEADINGS[backend])
    for said in ("Durable.", "Atomic.", "After a crash.", "Order.", "Choose it when"):
        assert re.search(rf"^\*\*{re.escape(said)}\*\* .+", about, re.MULTILINE), said


def test_every_redis_key_is_explained() -> None:
    about = section(text_of("backends.md"), "Redis")
    assert [name for name in keys.FIXED if f":{name}`" not in about] == []
    for name in (keys.registry("mayflymq"), keys.broker("mayflymq")):
        assert f"`{name}`" in about


def test_the_bytes_of_a_redis_job_are_about_what_the_page_says() -> None:
    import redis

    from localstack.servers import RedisServer
    from mayflymq import Queue, open_backend

    [said] = re.findall(r"^\| waiting \| (\d+) \|$", text_of("backends.md"), re.MULTILINE)
    with RedisServer() as server, redis.Redis.from_url(server.url) as client:
        queue = Queue("emails", open_backend(server.url))
        jobs = [queue.job("send_welcome", ("ada@example.org",)) for _ in range(4001)]
        queue.enqueue_jobs(jobs[:1])
        before = client.info("memory")["used_memory"]
        queue.enqueue_jobs(jobs[1:])
        bytes_a_job = (client.info("memory")["used_memory"] - before) / 4000
        queue.backend.close()
    assert 0.8 < bytes_a_job / int(said) < 1.2, f"{bytes_a_job:.0f} bytes, and the page says {said}"


def test_every_setting_is_listed_with_its_default() -> None:
    table = section(text_of("operations.md"), "Settings")
    rows = re.findall(r"^\| `(MAYFLYMQ_\w+)` \| (?:`(.+?)`)? ?\|", table, re.MULTILINE)
    defaults = {f"MAYFLYMQ_{name.upper()}": field.default for name, field in Settings.model_fields.items()}
    assert dict(rows) == {name: as_text(default) for name, default in defaults.items()}


def as_text(default: object) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    return str(int(default) if isinstance(default, float) else default or "")


def test_events_and_exit_codes_are_listed() -> None:
    page = text_of("operations.md")
    assert re.findall(r"`(job:\w+)`", section(page, "Events")) == list(events.NAMES)
    from mayflymq.cli.output import DONE, INTERRUPTED, NOT_DONE, UNREACHABLE, USAGE

    codes = re.findall(r"^\| (\d+) \|", section(page, "Exit codes"), re.MULTILINE)
    assert list(map(int, codes)) == [DONE, NOT_DONE, USAGE, UNREACHABLE, INTERRUPTED]


def test_defaults_in_the_text_are_the_code_s() -> None:
    retention = section(text_of("operations.md"), "Retention")
    assert (Retention().completed_ms, "| 24 hours |" in retention) == (24 * 3_600_000, True)
    assert (Retention().failed_ms, "| 14 days |" in retention) == (14 * 24 * 3_600_000, True)
    assert claim_and_run.__kwdefaults__["stalled_threshold_ms"] == 30_000
    assert claim_and_run.__kwdefaults__["margin_ms"] == 1_000
    assert all(f":{state}`" in text_of("backends.md") for state in State)


def test_pages_name_no_issue_and_no_path_of_the_machine() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"#\d+\b", text), page.name
        assert not {str(ROOT), str(Path.home())} & set(re.findall(r"/[\w/.-]+", text)), page.name


def test_the_helper_explains_itself() -> None:
    assert documents.main([]) == 0
