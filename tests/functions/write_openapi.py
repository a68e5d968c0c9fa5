"""Writes docs/openapi.json from the description that the enqueue function serves."""

import json
from pathlib import Path

from mayflymq.aws.openapi import description

if __name__ == "__main__":
    path = Path(__file__).resolve().parents[2] / "docs" / "openapi.json"
    path.write_text(json.dumps(description(), indent=2) + "\n")
