"""A local AWS without Docker: MiniStack, an emulator in Python that deploys a SAM template and runs its
functions as processes. It lives in an environment of its own (`.venv-emulators`) and is started here on a
private loopback port, with all that it writes in a temporary folder.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from localstack.servers import ServerError, free_port

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 60
REGION = "us-east-1"


class LocalAws:
    """A local AWS that checks signatures and policies (IAM), as AWS does."""

    def __init__(self) -> None:
        self._program = ROOT / ".venv-emulators/bin/ministack"
        if not self._program.exists():
            raise ServerError("the local AWS is not installed: run `make setup`")
        self.folder = Path(tempfile.mkdtemp(prefix="mayflymq-aws-"))
        """Deleted when it stops; callers may put files there for what they deploy."""
        self._log = self.folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def endpoint(self) -> str:
        """Where all of its services are, for AWS_ENDPOINT_URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """What a program needs to use it as the account's root user, and nothing of the developer's own."""
        return {
            **self._own(),
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": REGION,
            "SAM_CLI_TELEMETRY": "0",
        }

    def _own(self) -> dict[str, str]:
        # A profile, a region or a proxy of the developer's shell would decide where the calls go.
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "TMPDIR": str(temporary),
            "LANG": "C.UTF-8",
        }

    def start(self) -> LocalAws:
        """Starts it and waits until it answers."""
        settings = {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(self.port), "AUTH": "true"}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._program],
                env=self._own() | settings,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,  # the functions' processes are in its group and go with it
            )
        give_up = time.monotonic() + PATIENCE_S
        while not self._answers():
            if time.monotonic() > give_up or self._process.poll() is not None:
                log_text = self.log()[-2000:]
                self.stop()
                raise ServerError(f"the local AWS did not come up: {log_text}")
            time.sleep(0.05)
        return self

    def _answers(self) -> bool:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)) as line:
            try:
                line.request("GET", "/_ministack/health")
                return line.getresponse().status == http.client.OK
            except (OSError, http.client.HTTPException):
                return False

    def log(self) -> str:
        """What it and the functions wrote."""
        return self._log.read_text(errors="replace")

    def stop(self) -> None:
        """Stops it and the functions, and deletes what they wrote."""
        if self._process is not None:
            # Asked nicely, it takes up to ten seconds to save and close what is deleted right after.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> LocalAws:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
