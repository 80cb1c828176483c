"""A trained model file as Python's own safetensors package reads it."""

import functools
import json
import math
import unittest

import reader_python
from dtrain_harness import DTRAIN, final_model, make_folder, run
from rounding import rounding_bound

LEVELS, WIDTH, HEADS, NEURONS, VOCAB = 2, 12, 2, 10, 256

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
        run(DTRAIN, "train", "--levels", LEVELS, "--width", WIDTH, "--heads", HEADS, "--neurons", NEURONS, "--data",
            cls.folder / "text.txt", "--seq-len", 16, "--microbatch", 2, "--steps", 3, "--threads", 1, "--run-dir", run_dir,
            *arguments)
        return json.loads(run(reader_python.PYTHON, "-c", READER, final_model(run_dir)).stdout)

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
            "name": "bdh", "levels": LEVELS, "width": WIDTH, "heads": HEADS, "neurons": NEURONS, "vocab": VOCAB,
            "dropout": 0.1, "tie_levels": True})

    def test_untied_levels_have_matrices_of_their_own(self):
        contents = self.contents("--tie-levels", "off")
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
