"""What the tests of the template and the artifacts look at."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.functions.lambda_runtime import ROOT
from tests.sam.builds import HOST, build

# Runs where the SAM command line lives: what CloudFormation gets to see of a template.
TRANSLATE = """
import json, os, sys
os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
from samcli.yamlhelper import yaml_parse
from samtranslator.parser.parser import Parser
from samtranslator.translator.translator import Translator
with open(sys.argv[1]) as file:
    template = yaml_parse(file.read())
for resource in template["Resources"].values():
    for uri in {"CodeUri", "ContentUri"} & resource["Properties"].keys():
        resource["Properties"][uri] = "s3://bucket/key"  # as `sam deploy` does after the upload
print(json.dumps(Translator({}, Parser()).translate(template, {})))
"""


@pytest.fixture(scope="session")
def default_build() -> Path:
    return build("python3.13-arm64")


@pytest.fixture(scope="session")
def host_build() -> Path:
    """Built for this machine and this Python."""
    return build(HOST)


@pytest.fixture(scope="session")
def stack(default_build: Path) -> dict[str, Any]:
    """The built template, translated to plain CloudFormation."""
    command: list[str | Path] = [
        ROOT / ".venv-sam/bin/python",
        "-c",
        TRANSLATE,
        default_build / "template.yaml",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    translated: dict[str, Any] = json.loads(done.stdout)
    return translated
