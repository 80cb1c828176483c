"""The Python that reads our files in tests whose oracles are safetensors and PyTorch: scripts/setup.sh --dev makes it."""

import os
import pathlib
import sys

FOLDER = pathlib.Path(os.environ["DTRAIN_SOURCE_DIR"]) / ".deps" / "python"
PYTHON = FOLDER / "bin" / "python"


def require():
    """Ends the test as skipped where that Python is missing."""
    if not (FOLDER / "installed-from.txt").exists():
        print(f"SKIPPED: there is no {FOLDER}; scripts/setup.sh --dev makes it", file=sys.stderr)
        sys.exit(77)
