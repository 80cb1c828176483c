"""The toy family of tests/toy, which is defined by its own files and one line of a list, through the real command line."""

import functools
import json
import math
import random
import shutil
import struct
import unittest

from dtrain_harness import (CONSTANT_RATE, BUILD, DTRAIN, GOLDEN, USAGE, FolderTest, final_model, front_end_alone, launched, make_folder,
                            metrics_of, run)
from messages import assert_names
from rounding import condition_bound, largest_error, rounding_bound, roundings
from safetensors_file import read_model, tensors_of, write_model

TOY = BUILD / "toy" / "bin" / "dtrain"
MODEL = [*CONSTANT_RATE, "--model", "toy", "--layers", "4", "--width", "16", "--toy-hidden", "24", "--toy-groups", "4", "--toy-tie-layers", "off"]
WORK = [*MODEL, "--seq-len", "16", "--global-batch", "8", "--microbatch", "1", "--lr", "1e-2", "--val-fraction", "0.05",
        "--eval-sequences", "11", "--threads", "1", "--dtype", "float64", "--steps", "4", "--checkpoint-every", "2",
        "--data", GOLDEN / "text.bin"]
EQUAL_BITS = {"ddp": (2, "--strategy ddp"), "fsdp": (2, "--strategy fsdp"), "dp": (1, "--strategy dp --local-ranks 4")}
ROUNDED = {"tp": (2, "--strategy tp"), "pp": (2, "--strategy pp"),
           "3d": (4, "--strategy 3d --pp 2 --tp 2 --recompute level")}
LAYOUTS = {"one": (1, ""), **EQUAL_BITS, **ROUNDED}


def train(run_dir, layout, *flags):
    ranks, strategy = LAYOUTS[layout]
    return run(*launched(ranks, *WORK, *strategy.split(), "--run-dir", run_dir, *flags, program=TOY))


@functools.cache
def trained(layout, *flags):
    """The run folder of a layout; tests must not change it."""
    run_dir = make_folder(unittest) / "run"
    train(run_dir, layout, *flags)
    return run_dir


def numbers(run_dir):
    return [line[key] for line in metrics_of(run_dir) for key in ("loss", "grad_norm", "val_loss") if key in line]


class Settings(FolderTest):
    def test_an_error_between_them_is_found_without_libtorch(self):
        alone = front_end_alone(self.folder, TOY)
        words = [alone, *WORK, "--toy-hidden", "26"]
        error = run(*words, status=USAGE).stderr
        assert_names(error, "--toy-hidden 26", "--toy-groups 4")
        self.assertEqual(error.count("\n"), 1)
        run(*words, "--toy-groups", "2", "--run-dir", self.folder / "run", status=42)  # the stand-in was asked

    def test_they_are_in_help_and_in_the_saved_configuration(self):
        self.assertIn("--toy-groups G", run(TOY, "--help").stdout)
        model = json.loads((trained("one") / "config.json").read_text())["model"]
        self.assertEqual(model, {"name": "toy", "layers": 4, "width": 16, "toy_hidden": 24, "toy_groups": 4, "vocab": 256,
                                 "heads": 4, "dropout": 0.1, "toy_tie_layers": False})

    def test_a_range_holds_in_files_too(self):
        file = self.folder / "toy.json"
        file.write_text('{"model": {"name": "toy", "toy_groups": 0}}')
        self.assertIn("model.toy_groups: found 0", run(TOY, "--config", file, "--print-config", status=USAGE).stderr)

    def test_runs_of_other_families_do_not_have_them(self):
        words = ["--heads", "2", "--print-config"]
        self.assertEqual(run(TOY, *words).stdout, run(DTRAIN, *words).stdout)
        self.assertIn("unknown flag --toy-hidden", run(DTRAIN, "--toy-hidden", "8", status=USAGE).stderr)

    def test_settings_of_another_family_have_no_effect_and_are_not_saved(self):
        self.assertEqual(run(TOY, *MODEL, "--neurons", "64", "--print-config").stdout, run(TOY, *MODEL, "--print-config").stdout)
        error = run(front_end_alone(self.folder, TOY), *WORK, "--neurons", "64", "--run-dir", self.folder / "run", status=42).stderr
        assert_names(error, "warning", "--neurons", "--model toy")

    def test_a_family_without_counts_cannot_be_matched(self):
        file = self.folder / "toy.json"
        file.write_text('{"model": {"name": "toy"}}')
        for words in (["--model", "toy", "--match", GOLDEN.parents[1] / "configs/experiments/mini.json"], ["--match", file]):
            assert_names(run(TOY, *words, "--print-config", status=USAGE).stderr, "--match", "--model toy")

    def test_a_resumed_run_may_not_change_them(self):
        run_dir = shutil.copytree(trained("one"), self.folder / "run")
        error = run(TOY, *WORK, "--toy-groups", "2", "--run-dir", run_dir, "--resume", "auto", status=USAGE).stderr
        assert_names(error, "model.toy_groups", "2", "4")


class Training(FolderTest):
    @classmethod
    @functools.cache
    def bound(cls):
        """Tolerance of assert_close for float64 rounding in each of two runs."""
        folder = make_folder(cls)

        def results_of(model):
            train(folder / "run", "one", "--init-from", model, "--overwrite")
            return {"numbers": numbers(folder / "run"), **tensors_of(final_model(folder / "run"))}
        train(folder / "initial", "one", "--steps", "1", "--lr", "0")
        count = roundings(levels=4, steps=4, tokens=8 * 16, dtype="float64")
        return 2 * condition_bound("float64", count, results_of, final_model(folder / "initial"), folder)

    def assert_close(self, found, expected):
        self.assertLessEqual(largest_error(found, expected), self.bound())

    def test_losses_fall(self):
        losses = [line["loss"] for line in metrics_of(trained("one")) if "loss" in line]
        self.assertLess(losses[-1], losses[0])

    def test_the_data_axis_changes_no_bit(self):
        for layout in EQUAL_BITS:
            with self.subTest(layout):
                self.assertEqual(numbers(trained(layout)), numbers(trained("one")))
                self.assertEqual(final_model(trained(layout)).read_bytes(), final_model(trained("one")).read_bytes())

    def test_tensor_and_pipeline_axes_change_rounding_alone(self):
        expected = tensors_of(final_model(trained("one")))
        self.assertEqual(len(expected), 2 + 3 * 4 + 1)  # levels of their own, and the buffer
        for layout in ROUNDED:
            with self.subTest(layout):
                self.assert_close(numbers(trained(layout)), numbers(trained("one")))
                found = tensors_of(final_model(trained(layout)))
                self.assertEqual(found.keys(), expected.keys())
                for tensor, values in expected.items():
                    self.assert_close(found[tensor], values)

    def test_a_tensor_axis_that_does_not_fit_is_refused(self):
        error = run(*launched(3, *WORK, "--strategy", "tp", "--run-dir", self.folder / "run", program=TOY), status=USAGE).stderr
        assert_names(error, "--tp 3", "--toy-groups 4")

    def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(self):
        parts = shutil.copytree(trained("3d"), self.folder / "parts")
        for later in ("checkpoints/step-4", "final"):
            shutil.rmtree(parts / later)
        self.assertIn("step-2", train(parts, "3d", "--resume", "auto").stderr)
        self.assertEqual(final_model(parts).read_bytes(), final_model(trained("3d")).read_bytes())

    def test_a_run_resumes_with_another_layout(self):
        moved = shutil.copytree(trained("fsdp"), self.folder / "moved")
        train(moved, "pp", "--resume", "auto", "--steps", "6")
        expected = tensors_of(final_model(trained("one", "--steps", "6")))
        for tensor, values in tensors_of(final_model(moved)).items():
            self.assert_close(values, expected[tensor])


class Files(FolderTest):
    def test_export_and_import_keep_every_weight(self):
        exported, again = self.folder / "exported.safetensors", self.folder / "again.safetensors"
        run(TOY, "checkpoint", "export", trained("tp"), exported)
        expected = tensors_of(exported)
        self.assertEqual(expected, tensors_of(final_model(trained("tp"))))
        bare = self.folder / "bare.safetensors"  # without metadata, so that the tensors show the family
        write_model(bare, read_model(exported)[0])
        self.write("config.json", '{"model_type": "toy"}')  # describes nothing: the family has no models in Hugging Face's format
        for source in (exported, bare):
            run(TOY, "checkpoint", "import", source, self.folder / "imported")
            run(TOY, "checkpoint", "export", self.folder / "imported", again, "--overwrite")
            self.assertEqual(tensors_of(again), expected)
            shutil.rmtree(self.folder / "imported")

    def test_an_export_in_hugging_faces_format_is_refused(self):
        error = run(TOY, "checkpoint", "export", trained("one"), self.folder / "out", "--format", "huggingface", status=USAGE).stderr
        assert_names(error, "--format", "toy", "bdh", "llama")
        self.assertFalse((self.folder / "out").exists())

    def test_a_build_without_the_family_refuses_its_files(self):
        error = run(DTRAIN, "generate", "--from", trained("one"), status=None)
        self.assertEqual(error.returncode, 6)
        self.assertIn("toy", error.stderr)

    def test_generated_text_matches_a_model_with_one_byte_of_context(self):
        text = run(TOY, "generate", "--from", trained("one"), "--prompt", "In", "--max-tokens", "60", "--temperature", "0",
                   text=False, errors=None).stdout[2:]
        self.assertEqual(len(text), 60)
        following = {}
        for byte, after in zip(text, text[1:]):
            self.assertEqual(following.setdefault(byte, after), after)


class Reference:
    """The toy for one batch, token by token in plain Python: values and gradients by name."""

    LEVELS, WIDTH, HIDDEN, GROUPS, VOCAB, BATCH, LENGTH = 2, 4, 6, 2, 8, 2, 3

    def __init__(self):
        self.random = random.Random(4)
        self.inputs, self.targets = ([self.random.randrange(self.VOCAB) for _ in range(self.BATCH * self.LENGTH)]
                                     for _ in range(2))
        self.shapes = {"embed": (self.VOCAB, self.WIDTH), "head": (self.WIDTH, self.VOCAB)}
        for level in range(self.LEVELS):
            self.shapes[f"levels.{level}.in"] = self.shapes[f"levels.{level}.out"] = (self.HIDDEN, self.WIDTH)
            self.shapes[f"levels.{level}.bias"] = (self.GROUPS, self.HIDDEN // self.GROUPS)
        self.weights = {name: [self.random.gauss(0, 0.5) for _ in range(math.prod(shape))] for name, shape in self.shapes.items()}
        self.scale = [1 + unit // (self.HIDDEN // self.GROUPS) / self.GROUPS for unit in range(self.HIDDEN)]
        self.gradients = {name: [0.0] * len(values) for name, values in self.weights.items()}
        self.outputs = [[] for _ in range(self.LEVELS)]
        self.logits, self.loss = [], 0.0
        for token, target in zip(self.inputs, self.targets):
            self.compute(token, target)

    def compute(self, token, target):
        width, vocab, share = range(self.WIDTH), range(self.VOCAB), 1 / len(self.inputs)
        x, inner = self.weights["embed"][token * self.WIDTH:(token + 1) * self.WIDTH], []
        for level in range(self.LEVELS):
            inner.append((x, *self.level(level, x)))
            x = inner[-1][-1]
            self.outputs[level] += x
        head = self.weights["head"]
        logits = [sum(x[d] * head[d * self.VOCAB + v] for d in width) for v in vocab]
        total = sum(map(math.exp, logits))
        self.logits += logits
        self.loss += share * (math.log(total) - logits[target])
        d_logits = [share * (math.exp(logits[v]) / total - (v == target)) for v in vocab]
        for d in width:
            for v in vocab:
                self.gradients["head"][d * self.VOCAB + v] += x[d] * d_logits[v]
        dx = [sum(d_logits[v] * head[d * self.VOCAB + v] for v in vocab) for d in width]
        for level in reversed(range(self.LEVELS)):
            dx = self.back(level, *inner[level][:2], dx)
        for d in width:
            self.gradients["embed"][token * self.WIDTH + d] += dx[d]

    def level(self, level, x):
        into, out, bias = (self.weights[f"levels.{level}.{name}"] for name in ("in", "out", "bias"))
        width = range(self.WIDTH)
        hidden = [max(0.0, sum(into[h * self.WIDTH + d] * x[d] for d in width) + bias[h]) for h in range(self.HIDDEN)]
        return hidden, [x[d] + sum(hidden[h] * self.scale[h] * out[h * self.WIDTH + d] for h in range(self.HIDDEN)) for d in width]

    def back(self, level, x, hidden, dy):
        names = [f"levels.{level}.{name}" for name in ("in", "out", "bias")]
        into, out, _ = (self.weights[name] for name in names)
        d_into, d_out, d_bias = (self.gradients[name] for name in names)
        dx = list(dy)
        for h in range(self.HIDDEN):
            d_hidden = 0.0
            for d in range(self.WIDTH):
                d_out[h * self.WIDTH + d] += hidden[h] * self.scale[h] * dy[d]
                d_hidden += self.scale[h] * out[h * self.WIDTH + d] * dy[d] * (hidden[h] > 0)
            d_bias[h] += d_hidden
            for d in range(self.WIDTH):
                d_into[h * self.WIDTH + d] += d_hidden * x[d]
                dx[d] += d_hidden * into[h * self.WIDTH + d]
        return dx

    def fixture(self):
        """The tensors of a fixture, for write_model."""
        batch = (self.BATCH, self.LENGTH)
        values = {"loss": ((1,), [self.loss]), "logits": ((*batch, self.VOCAB), self.logits),
                  "weight.scale": (self.shapes["levels.0.bias"], self.scale)}
        for name, shape in self.shapes.items():
            values["weight." + name] = (shape, self.weights[name])
            values["grad." + name] = (shape, self.gradients[name])
        for level, output in enumerate(self.outputs):
            values[f"act.layer{level}.out"] = ((*batch, self.WIDTH), output)
        tensors = {name: ("F64", list(shape), struct.pack(f"<{len(numbers)}d", *numbers))
                   for name, (shape, numbers) in values.items()}
        for name, tokens in (("inputs", self.inputs), ("targets", self.targets)):
            tensors[name] = ("I64", list(batch), struct.pack(f"<{len(tokens)}q", *tokens))
        return tensors


class Verify(FolderTest):
    def verify(self, tensors, status):
        path = self.folder / "toy.safetensors"
        write_model(path, tensors)
        result = run(*launched(1, "verify", "--golden", path, "--dtype", "float64", "--strategy", "mp", program=TOY), status=status)
        return json.loads(result.stdout)["checks"] if result.stdout else result.stderr

    def test_it_agrees_with_plain_python_and_notices_an_error(self):
        tensors = Reference().fixture()
        checks = self.verify(tensors, 0)
        self.assertEqual(checks.keys() - {"scale"}, {"loss", "logits"} | {name for name in tensors if name.startswith(("act.", "grad."))})
        for name, check in checks.items():
            # Sums over up to 100 terms in each of some 20 products and norms, forward and backward; a buffer is of float32.
            self.assertLessEqual(check["error"], rounding_bound("float64", 4000) if name != "scale" else rounding_bound("float32", 1), name)
        dtype, shape, data = tensors["grad.levels.1.bias"]
        tensors["grad.levels.1.bias"] = (dtype, shape, data[:8] + struct.pack("<d", 7.0) + data[16:])
        self.assertFalse(self.verify(tensors, 7)["grad.levels.1.bias"]["passed"])

    def test_a_value_that_its_blocks_do_not_report_is_refused(self):
        tensors = Reference().fixture()
        tensors["act.layer0.ykv"] = tensors["act.layer0.out"]
        assert_names(self.verify(tensors, 6), "'act.layer0.ykv'")


if __name__ == "__main__":
    unittest.main()
