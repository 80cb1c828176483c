"""A checkpoint that two ranks wrote, as Python's own safetensors package and PyTorch's distributed checkpoint read it."""

import json
import unittest

import reader_python
from dtrain_harness import final_model, launched, make_folder, run

WIDTH, HEADS, NEURONS, VOCAB = 12, 2, 10, 256
SHAPES = {"decoder": [HEADS * NEURONS, WIDTH], "embed.weight": [VOCAB, WIDTH], "encoder": [HEADS * NEURONS, WIDTH],
          "encoder_v": [HEADS * NEURONS, WIDTH], "lm_head": [WIDTH, VOCAB]}
MOMENTS = {f"optimizer.{moment}.{name}": shape for moment in ("exp_avg", "exp_avg_sq") for name, shape in SHAPES.items()}

# Puts the pieces of each tensor together, from all files of a checkpoint, and counts what it saw.
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
counts = {name: [seen[name], value.size] for name, value in whole.items()}
"""

# Whole tensors from nothing but their names and shapes.
LOAD = """
import json, sys, warnings
import torch
import torch.distributed.checkpoint as checkpoint
warnings.simplefilter("ignore")
state = {name: torch.full(shape, float("nan")) for name, shape in json.loads(sys.argv[3]).items()}
checkpoint.load(state, storage_reader=checkpoint.HuggingFaceStorageReader(sys.argv[1]))
whole = {name: value.numpy() for name, value in state.items()}
counts = None
"""

# A checkpoint has a row for each neuron of each head, the reference a matrix for each head.
ANSWER = f"""
from safetensors import safe_open
def reference(name, value):
    return value.reshape({HEADS}, {NEURONS}, {WIDTH}).transpose(0, 2, 1) if name.startswith("encoder") else value
with safe_open(sys.argv[2], framework="numpy") as file:
    final = {{name: file.get_tensor(name) for name in file.keys()}}
print(json.dumps({{
    "as_final": {{name: bool((reference(name, whole["model." + name]) == value).all())
                 for name, value in final.items() if name != "attn.freqs"}},
    "moments": {{name: value.tobytes().hex() for name, value in whole.items() if name.startswith("optimizer.exp")}},
    "counts": counts}}))
"""


class Checkpoint(unittest.TestCase):
    """Two ranks train and save, and each reader reads, once for all tests."""

    @classmethod
    def setUpClass(cls):
        folder = make_folder(cls)
        text = folder / "text.txt"
        text.write_text("In the beginning God created the heaven and the earth.\n" * 40)
        run(*launched(2, "--strategy", "ddp", "--levels", 2, "--width", WIDTH, "--heads", HEADS, "--neurons", NEURONS,
                      "--data", text, "--seq-len", 16, "--microbatch", 2, "--steps", 3, "--threads", 1,
                      "--checkpoint-every", 3, "--run-dir", folder / "run"))
        cls.checkpoint = folder / "run" / "checkpoints" / "step-3"
        shapes = json.dumps({**{"model." + name: shape for name, shape in SHAPES.items()}, **MOMENTS})
        cls.safetensors, cls.torch = (
            json.loads(run(reader_python.PYTHON, "-c", program + ANSWER, cls.checkpoint, final_model(folder / "run"),
                           shapes).stdout) for program in (JOIN, LOAD))

    def test_each_rank_wrote_a_part(self):
        names = sorted(path.name for path in self.checkpoint.glob("*.safetensors"))
        self.assertEqual(names, [f"{kind}-0000{rank}-of-00002.safetensors"
                                 for kind in ("model", "optimizer") for rank in (1, 2)])

    def test_the_pieces_make_up_the_final_model(self):
        self.assertEqual(self.safetensors["as_final"], dict.fromkeys(SHAPES, True))

    def test_every_element_of_every_tensor_is_in_one_piece(self):
        self.assertEqual(len(self.safetensors["counts"]), 3 * len(SHAPES) + 1)
        for name, (found, size) in self.safetensors["counts"].items():
            self.assertEqual(found, size, name)

    def test_pytorchs_distributed_checkpoint_loads_the_final_models_weights(self):
        self.assertEqual(self.torch["as_final"], dict.fromkeys(SHAPES, True))

    def test_it_loads_the_moments_that_the_safetensors_package_finds(self):
        self.assertEqual(self.torch["moments"].keys(), MOMENTS.keys())
        self.assertEqual(self.torch["moments"], self.safetensors["moments"])


if __name__ == "__main__":
    unittest.main()
