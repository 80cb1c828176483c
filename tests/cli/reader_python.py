"""The Python that reads our files in tests whose oracles are safetensors and PyTorch: scripts/setup.sh --dev makes it."""

import os
import pathlib

PYTHON = pathlib.Path(os.environ["DTRAIN_SOURCE_DIR"]) / ".deps" / "python" / "bin" / "python"
