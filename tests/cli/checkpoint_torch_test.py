"""PyTorch's distributed checkpoint loads a checkpoint that two ranks wrote.

Needs a Python with torch 2.11, numpy and safetensors (scripts/peer/README.md): the one that DTRAIN_PEER_PYTHON names, or
else the one that runs this.
"""

import json
import os
import subprocess
import sys
import unittest

import checkpoint_python_test
from checkpoint_python_test import COMPARE, JOIN, SHAPES, SKIPPED

PYTHON = os.environ.get("DTRAIN_PEER_PYTHON", sys.executable)

# Whole tensors from nothing but their names and shapes.
LOAD = """
import json, sys, warnings
import torch
import torch.distributed.checkpoint as checkpoint
from safetensors.numpy import load_file
warnings.simplefilter("ignore")
shapes = json.loads(sys.argv[3])
state = {name: torch.full(shape, float("nan")) for name, shape in shapes.items()}
checkpoint.load(state, storage_reader=checkpoint.HuggingFaceStorageReader(sys.argv[1]))
whole = {name: value.numpy() for name, value in state.items()}
final = load_file(sys.argv[2])
"""


def missing_packages():
    """Why this test cannot run here; None if it can."""
    result = subprocess.run([PYTHON, "-c", "import numpy, safetensors, torch"], capture_output=True, text=True,
                            timeout=120, check=False)
    return result.stderr.strip().splitlines()[-1] if result.returncode != 0 else None


class DistributedCheckpoint(checkpoint_python_test.Checkpoint):
    python = PYTHON

    def test_its_weights_are_the_final_models(self):
        shapes = {"model." + name: shape for name, shape in SHAPES.items()}
        self.assertEqual(self.run_python(LOAD + COMPARE, json.dumps(shapes)), dict.fromkeys(SHAPES, True))

    def test_its_moments_are_those_that_the_safetensors_package_finds(self):
        names = [f"optimizer.{moment}.{name}" for moment in ("exp_avg", "exp_avg_sq") for name in SHAPES]
        shapes = {name: SHAPES[name.split(".", 2)[2]] for name in names}
        values = f"print(json.dumps({{name: whole[name].tobytes().hex() for name in {names}}}))"
        self.assertEqual(self.run_python(LOAD + values, json.dumps(shapes)), self.run_python(JOIN + values))


if __name__ == "__main__":
    reason = missing_packages()
    if reason is not None:
        print(f"SKIPPED: {PYTHON} cannot read checkpoints: {reason}; set DTRAIN_PEER_PYTHON to a Python with torch 2.11, "
              "numpy and safetensors", file=sys.stderr)
        sys.exit(SKIPPED)
    unittest.main()
