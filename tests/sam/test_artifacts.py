"""What the default build holds: the right wheels, one driver, nothing that the runtime has anyway, and little
of it. Nothing of it runs here; the host may be another machine with another Python."""

import re
import struct
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

AARCH64 = 183  # e_machine of an ELF header
GLIBC = 34  # of Amazon Linux 2023, where python3.12 and later run

LAYER = {
    "annotated-types",
    "aws-lambda-powertools",
    "cronsim",
    "jmespath",
    "pydantic",
    "pydantic-core",
    "pydantic-settings",
    "python-dotenv",
    "redis",
    "typing-extensions",
    "typing-inspection",
}
HANDLERS = {
    "EnqueueFunction": "enqueue.py",
    "ClaimAndRunFunction": "claim_and_run.py",
    "StalledSweepFunction": "stalled_sweep.py",
    "DelayedPromoterFunction": "delayed_promoter.py",
}
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def packages(default_build: Path) -> Path:
    return default_build / "Layer" / "python"


def metadata(packages: Path, file: str) -> dict[str, list[str]]:
    """The values of Name (of METADATA) or Tag (of WHEEL), by distribution."""
    parsed = {
        path.parent.name: HeaderParser().parsestr(path.read_text(encoding="utf-8"))
        for path in packages.glob(f"*.dist-info/{file}")
    }
    return {name: head.get_all("Name" if file == "METADATA" else "Tag", []) for name, head in parsed.items()}


def test_every_wheel_is_for_the_target(packages: Path) -> None:
    binary = set()
    for distribution, tags in metadata(packages, "WHEEL").items():
        assert tags, distribution
        if "py3-none-any" in tags:
            continue
        binary.add(distribution.split("-")[0])
        for tag in tags:
            python, abi, platform = tag.split("-")
            assert (python, abi) in {("cp313", "cp313"), ("cp313", "abi3")}, tag
            old_enough = re.fullmatch(r"manylinux_2_(\d+)_aarch64", platform)
            assert platform == "manylinux2014_aarch64" or (old_enough and int(old_enough[1]) <= GLIBC), tag
    assert binary == {"pydantic_core"}


def test_the_one_binary_is_for_the_target(packages: Path) -> None:
    (binary,) = (
        path for path in packages.parent.rglob("*") if re.search(r"\.(so|pyd|dylib)(\.|$)", path.name)
    )
    assert binary.relative_to(packages) == Path(
        "pydantic_core/_pydantic_core.cpython-313-aarch64-linux-gnu.so"
    )
    head = binary.read_bytes()[:20]
    assert head[:6] == b"\x7fELF\x02\x01"  # 64 bits, little-endian
    assert struct.unpack_from("<H", head, 18) == (AARCH64,)


def test_the_layer_holds_one_driver_and_nothing_that_the_runtime_brings(packages: Path) -> None:
    names = [name for names in metadata(packages, "METADATA").values() for name in names]
    assert {re.sub(r"[-_.]+", "-", name).lower() for name in names} == LAYER
    top = {path.name for path in packages.iterdir() if path.suffix != ".dist-info"}
    assert top == {
        *(
            "annotated_types",
            "aws_lambda_powertools",
            "cronsim",
            "dotenv",
            "jmespath",
            "mayflymq",
            "pydantic",
        ),
        *("pydantic_core", "pydantic_settings", "redis", "typing_extensions.py", "typing_inspection"),
    }
    assert {path.name for path in packages.parent.iterdir()} == {"python", "target.yaml"}


def test_the_layer_holds_the_whole_library(packages: Path) -> None:
    from mayflymq import __file__ as installed

    def files(folder: Path) -> set[Path]:
        found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        return {path.relative_to(folder) for path in found}

    assert files(packages / "mayflymq") == files(Path(installed).parent)


def test_no_bytecode_of_the_hosts_python(default_build: Path) -> None:
    assert not list(default_build.rglob("*.pyc"))


@pytest.mark.parametrize("function", HANDLERS)
def test_a_function_holds_its_handler_and_the_tasks(default_build: Path, function: str) -> None:
    files = {
        str(path.relative_to(default_build / function)) for path in (default_build / function).rglob("*.*")
    }
    handlers = {f"functions/{handler}" for handler in HANDLERS.values()}
    assert files & handlers == {f"functions/{HANDLERS[function]}"}
    assert {"functions/__init__.py", "functions/tasks.py"} <= files
    assert not any(name.endswith("Makefile") for name in files)


def test_sizes(default_build: Path, tmp_path: Path) -> None:
    """docs/deploy.md states them. Lambda's own limit is 250 MiB for a function with its layers, unpacked."""

    def weigh(name: str) -> tuple[int, int]:
        files = [path for path in (default_build / name).rglob("*") if path.is_file()]
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for path in files:
                archive.write(path, path.relative_to(default_build / name))
        return sum(path.stat().st_size for path in files), (tmp_path / f"{name}.zip").stat().st_size

    unpacked, packed = weigh("Layer")
    assert unpacked < 18 * MIB
    assert packed < 6 * MIB
    assert all(weigh(function)[0] < 64 * 1024 for function in HANDLERS)
