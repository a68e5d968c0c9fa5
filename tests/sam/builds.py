"""The application as `sam build` makes it. make builds only what changed, so most runs build nothing."""

import fcntl
import platform
import subprocess
import sys
from pathlib import Path

from tests.functions.lambda_runtime import ROOT

HOST = f"python3.{sys.version_info[1]}-{platform.machine().replace('aarch64', 'arm64')}"
"""This machine and this Python."""


def build(target: str) -> Path:
    """The folder of the build for a target such as python3.13-arm64."""
    template = Path("build", "sam", target, "build", "template.yaml")
    (ROOT / "build").mkdir(exist_ok=True)
    with (ROOT / "build" / "sam.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the other test process may want the same
        done = subprocess.run(["make", "-s", str(template)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return ROOT / template.parent
