"""A Python that reads safetensors files, for tests whose oracle is that package."""

import fcntl
import os
import pathlib
import subprocess
import sys

VENV = pathlib.Path(os.environ["DTRAIN_BINARY_DIR"]) / "python" / "safetensors"
PACKAGES = ("safetensors==0.4.5", "numpy==1.26.4")


def reader_python():
    """The interpreter with safetensors and numpy, made once; None if the packages cannot be had."""
    python = VENV / "bin" / "python"
    VENV.parent.mkdir(parents=True, exist_ok=True)
    with (VENV.parent / "safetensors.lock").open("w") as lock:  # several tests may come first
        fcntl.flock(lock, fcntl.LOCK_EX)
        return python if (VENV / "ready").exists() or made(python) else None


def made(python):
    commands = ([sys.executable, "-m", "venv", str(VENV)],
                [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES])
    for command in commands:
        result = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        if result.returncode != 0:
            print(f"SKIPPED: {' '.join(command)} failed:\n{result.stdout}{result.stderr}", file=sys.stderr)
            return False
    (VENV / "ready").touch()
    return True
