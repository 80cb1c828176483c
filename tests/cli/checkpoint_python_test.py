"""A checkpoint that two ranks wrote, as Python's own safetensors package reads it."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from reader_python import reader_python

BUILD = pathlib.Path(os.environ["DTRAIN_BINARY_DIR"])
DTRAIN, DTRUN = BUILD / "bin" / "dtrain", BUILD / "bin" / "dtrun"
SKIPPED = 77
WIDTH, HEADS, NEURONS, VOCAB = 12, 2, 10, 256
SHAPES = {"decoder": [HEADS * NEURONS, WIDTH], "embed.weight": [VOCAB, WIDTH], "encoder": [HEADS * NEURONS, WIDTH],
          "encoder_v": [HEADS * NEURONS, WIDTH], "lm_head": [WIDTH, VOCAB]}

# Puts the pieces of each tensor together, from all files of a checkpoint, and says what it saw.
JOIN = """
import json, pathlib, sys
import numpy as np
from safetensors import safe_open
whole, seen = {}, {}
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.safetensors")):
    with safe_open(path, framework="numpy") as file:
        offsets = json.loads(file.metadata()["DCP_SHARDING_INFO"])
        shapes = json.loads(file.metadata()["dtrain.shapes"])
        for name in file.keys():
            piece = file.get_tensor(name)
            target = whole.setdefault(name, np.full(shapes[name], np.nan, piece.dtype))
            box = tuple(slice(o, o + s) for o, s in zip(offsets[name]["saved_offsets"], piece.shape, strict=True))
            target[box] = piece
            seen[name] = seen.get(name, 0) + piece.size
with safe_open(sys.argv[2], framework="numpy") as file:
    final = {name: file.get_tensor(name) for name in file.keys()}
"""

# A checkpoint has a row for each neuron of each head, the reference a matrix for each head.
COMPARE = f"""
def reference(name, value):
    return value.reshape({HEADS}, {NEURONS}, {WIDTH}).transpose(0, 2, 1) if name.startswith("encoder") else value
print(json.dumps({{name: bool((reference(name, whole["model." + name]) == value).all())
                  for name, value in final.items() if name != "attn.freqs"}}))
"""


class Checkpoint(unittest.TestCase):
    """Two ranks train and save once for all tests."""

    python = None  # the interpreter that reads

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="dtrain-python-")
        cls.addClassCleanup(folder.cleanup)
        text = pathlib.Path(folder.name) / "text.txt"
        text.write_text("In the beginning God created the heaven and the earth.\n" * 40)
        run = pathlib.Path(folder.name) / "run"
        command = [DTRUN, "-n", 2, "--", DTRAIN, "--strategy", "ddp", "--levels", 2, "--width", WIDTH, "--heads", HEADS,
                   "--neurons", NEURONS, "--data", text, "--seq-len", 16, "--microbatch", 2, "--steps", 3, "--threads", 1,
                   "--checkpoint-every", 3, "--run-dir", run]
        result = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, check=False)
        assert result.returncode == 0, result.stderr
        cls.checkpoint = run / "checkpoints" / "step-3"
        cls.final = run / "final" / "model.safetensors"

    def run_python(self, program, *arguments):
        result = subprocess.run([self.python, "-c", program, self.checkpoint, self.final, *arguments], capture_output=True,
                                text=True, timeout=120, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)


class Safetensors(Checkpoint):
    def test_each_rank_wrote_a_part(self):
        names = sorted(path.name for path in self.checkpoint.glob("*.safetensors"))
        self.assertEqual(names, [f"{kind}-0000{rank}-of-00002.safetensors"
                                 for kind in ("model", "optimizer") for rank in (1, 2)])

    def test_the_pieces_make_up_the_final_model(self):
        self.assertEqual(self.run_python(JOIN + COMPARE), dict.fromkeys(SHAPES, True))

    def test_every_element_of_every_tensor_is_in_one_piece(self):
        seen = self.run_python(JOIN + "print(json.dumps({n: [seen[n], w.size] for n, w in whole.items()}))")
        self.assertEqual(len(seen), 3 * len(SHAPES) + 1)
        for name, (found, size) in seen.items():
            self.assertEqual(found, size, name)


if __name__ == "__main__":
    Checkpoint.python = reader_python()
    if Checkpoint.python is None:
        sys.exit(SKIPPED)
    unittest.main()
