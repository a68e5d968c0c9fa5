"""Plays the backend against the model for as long as asked (tests/contract/test_model.py).

    python -m tests.soak --backend sqlite --seconds 60 --seed 7

Prints the seed of each round; a failure names the one that plays it again. Without --seed, one is made up.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import tempfile
import traceback
from pathlib import Path

from tests.contract.harness import Harness
from tests.contract.test_model import soak

CONTRACT = Path(__file__).resolve().parent / "contract"
BACKENDS = sorted(
    path.stem.removeprefix("harness_").replace("_", "-") for path in CONTRACT.glob("harness_*.py")
)


def say(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak")
    parser.add_argument("--backend", choices=BACKENDS, default="sqlite")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    module = options.backend.replace("-", "_")
    kind: type[Harness] = importlib.import_module(f"tests.contract.harness_{module}").HARNESS
    say(f"{options.backend}: {options.seconds:g} seconds from seed {seed}")
    kind.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            soak(kind, Path(folder), options.seconds, seed, say)
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        kind.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
