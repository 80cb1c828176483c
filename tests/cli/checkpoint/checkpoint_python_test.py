"""Checkpoints and model files, as Python's own safetensors package and PyTorch's distributed checkpoint read them."""

import functools
import json
import math
import unittest

from dtrain_harness import DTRAIN, PYTHON, final_model, launched, make_folder, run
from rounding import rounding_bound

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
        run(*launched(2, "--strategy", "ddp", "--layers", 2, "--width", WIDTH, "--heads", HEADS, "--neurons", NEURONS,
                      "--data", text, "--seq-len", 16, "--microbatch", 2, "--steps", 3, "--threads", 1,
                      "--checkpoint-every", 3, "--run-dir", folder / "run"))
        cls.checkpoint = folder / "run" / "checkpoints" / "step-3"
        shapes = json.dumps({**{"model." + name: shape for name, shape in SHAPES.items()}, **MOMENTS})
        cls.safetensors, cls.torch = (
            json.loads(run(PYTHON, "-c", program + ANSWER, cls.checkpoint, final_model(folder / "run"),
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


LEVELS = 2

READER = """
import json, sys
from safetensors import safe_open
with safe_open(sys.argv[1], framework="numpy") as file:
    tensors = {name: file.get_tensor(name) for name in file.keys()}
    print(json.dumps({
        "metadata": file.metadata(),
        "shapes": {name: list(value.shape) for name, value in tensors.items()},
        "dtypes": {name: str(value.dtype) for name, value in tensors.items()},
        "spread": {name: [float(abs(value).max()), float(value.std())] for name, value in tensors.items()},
        "freqs": [float(value) for value in tensors["attn.freqs"].ravel()]}))
"""


class ModelFile(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = make_folder(cls)
        (cls.folder / "text.txt").write_text("In the beginning God created the heaven and the earth.\n" * 40)

    @classmethod
    @functools.cache
    def contents(cls, *arguments):
        run_dir = cls.folder / "-".join(("run", *arguments))
        run(DTRAIN, "train", "--layers", LEVELS, "--width", WIDTH, "--heads", HEADS, "--neurons", NEURONS, "--data",
            cls.folder / "text.txt", "--seq-len", 16, "--microbatch", 2, "--steps", 3, "--threads", 1, "--run-dir", run_dir,
            *arguments)
        return json.loads(run(PYTHON, "-c", READER, final_model(run_dir)).stdout)

    def test_names_shapes_and_dtypes_are_the_references(self):
        contents = self.contents()
        self.assertEqual(contents["shapes"], {
            "embed.weight": [VOCAB, WIDTH], "encoder": [HEADS, WIDTH, NEURONS], "encoder_v": [HEADS, WIDTH, NEURONS],
            "decoder": [HEADS * NEURONS, WIDTH], "lm_head": [WIDTH, VOCAB], "attn.freqs": [1, 1, 1, NEURONS]})
        self.assertEqual(set(contents["dtypes"].values()), {"float32"})

    def test_frequencies_are_those_of_the_rotary_embedding(self):
        expected = [65536 ** (-2 * (i // 2) / NEURONS) / (2 * math.pi) for i in range(NEURONS)]
        for found, value in zip(self.contents()["freqs"], expected, strict=True):
            # The exponent is rounded, which counts up to ln(65536) times; then the power, 2 pi and two quotients.
            self.assertAlmostEqual(found / value, 1, delta=rounding_bound("float32", math.log(65536) + 4))

    def test_weights_are_trained_from_a_deviation_of_a_fiftieth(self):
        for name, (largest, deviation) in self.contents()["spread"].items():
            if name != "attn.freqs":
                self.assertLess(largest, 0.15, name)
                self.assertAlmostEqual(deviation, 0.02, delta=0.004, msg=name)

    def test_metadata_describe_the_model(self):
        metadata = self.contents()["metadata"]
        self.assertEqual(set(metadata), {"format", "dtrain.model", "dtrain.checksum"})
        self.assertEqual(metadata["format"], "pt")
        self.assertEqual(json.loads(metadata["dtrain.model"]), {
            "name": "bdh", "layers": LEVELS, "width": WIDTH, "heads": HEADS, "neurons": NEURONS, "vocab": VOCAB,
            "dropout": 0.1, "tie_layers": True})

    def test_untied_levels_have_matrices_of_their_own(self):
        contents = self.contents("--tie-layers", "off")
        for level in range(LEVELS):
            for name in ("encoder", "encoder_v", "decoder"):
                self.assertIn(f"levels.{level}.{name}", contents["shapes"])
        self.assertNotIn("encoder", contents["shapes"])

    def test_a_float64_run_keeps_its_precision(self):
        dtypes = self.contents("--dtype", "float64")["dtypes"]
        self.assertEqual(dtypes["attn.freqs"], "float32")
        self.assertEqual({dtype for name, dtype in dtypes.items() if name != "attn.freqs"}, {"float64"})


if __name__ == "__main__":
    unittest.main()
