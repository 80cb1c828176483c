"""Tensor, pipeline and 3D layouts: equal weights, resume in another layout, rejections."""

import functools
import shutil
import unittest

from dtrain_harness import CONSTANT_RATE, FolderTest, SOURCE, final_model, launched, make_folder, metrics_of, run
from rounding import condition_bound, largest_error, roundings
from safetensors_file import tensors_of

# A vocabulary that no number of tensor ranks divides.
TINY = [*CONSTANT_RATE, "--layers", "4", "--width", "32", "--heads", "2", "--neurons", "64", "--vocab", "257", "--seq-len", "32",
        "--global-batch", "8", "--microbatch", "2", "--lr", "3e-3", "--val-fraction", "0.05", "--eval-sequences", "11", "--eval-every", "2",
        "--dropout", "0.1", "--threads", "1", "--steps", "4", "--dtype", "float64", "--data", SOURCE / "tests/golden/text.bin"]
LAYOUTS = {  # name: (ranks, flags), all with microbatches of two samples
    "tp": (2, "--strategy tp"),
    "tp within heads": (4, "--strategy tp --tp-vocab on"),
    "pp": (4, "--strategy pp"),
    "interleaved": (2, "--strategy pp --schedule-pp interleaved:2 --recompute level"),
    "by hand": (2, "--strategy pp --schedule-pp gpipe --pp-split 3,1 --backend gloo"),
    "3d": (8, "--strategy 3d --pp 2 --dp 2 --tp 2 --data-axis fsdp --checkpoint-every 2"),
    "mp": (1, "--strategy mp --local-ranks 2"),
}


class Case(FolderTest):
    def train(self, name, ranks, *flags, status=0):
        return run(*launched(ranks, *TINY, "--run-dir", self.folder / name, *flags), status=status).stderr

    @staticmethod
    def numbers(run_dir):
        return [line[key] for line in metrics_of(run_dir) for key in ("loss", "grad_norm", "val_loss") if key in line]

    @classmethod
    @functools.cache
    def bound(cls):
        """For assert_close: how far rounding in float64 may move each of two runs."""
        folder = make_folder(cls)

        def train(*flags):
            run(*launched(1, *TINY, "--run-dir", folder / "run", "--overwrite", *flags))
            return folder / "run"

        def results_of(model):
            trained = train("--init-from", model)
            return {"numbers": Case.numbers(trained), **tensors_of(final_model(trained))}
        initial = shutil.copy(final_model(train("--steps", "1", "--lr", "0")), folder / "initial.safetensors")
        count = roundings(levels=4, steps=4, tokens=8 * 32, dtype="float64")
        return 2 * condition_bound("float64", count, results_of, initial, folder)

    def assert_close(self, found, expected):
        self.assertLessEqual(largest_error(found, expected), self.bound())

    def assert_same_model(self, run_dir, expected):
        found, wanted = (tensors_of(final_model(folder)) for folder in (run_dir, expected))
        self.assertEqual(found.keys(), wanted.keys())
        for tensor, values in wanted.items():
            with self.subTest(tensor):
                self.assert_close(found[tensor], values)


class Results(Case):
    @classmethod
    @functools.cache
    def trained(cls, layout, *flags):
        """Run folder of a layout with these flags; tests do not modify it."""
        ranks, strategy = LAYOUTS.get(layout, (1, ""))
        run_dir = make_folder(cls) / "run"
        run(*launched(ranks, *TINY, "--run-dir", run_dir, *strategy.split(), *flags))
        return run_dir

    def test_every_layout_trains_what_one_process_trains(self):
        one = self.trained("one")
        for name in LAYOUTS:
            with self.subTest(name):
                self.assert_close(self.numbers(self.trained(name)), self.numbers(one))
                self.assert_same_model(self.trained(name), one)

    def test_a_run_resumes_in_any_layout(self):
        moves = [("pp", 2), ("3d", 3), ("tp within heads", 4), ("mp", 5), ("tp", 6)]
        for name, steps in moves:
            ranks, flags = LAYOUTS[name]
            self.train("moved", ranks, *flags.split(), "--steps", str(steps), "--checkpoint-every", "1", "--resume", "auto")
        self.assert_same_model(self.folder / "moved", self.trained("one", "--steps", "6"))

    def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(self):
        ranks, flags = LAYOUTS["3d"]
        whole, parts = self.trained("3d"), self.folder / "parts"
        shutil.copytree(whole, parts)
        for later in ("checkpoints/step-4", "final"):
            shutil.rmtree(parts / later)
        error = self.train("parts", ranks, *flags.split(), "--resume", "auto")
        self.assertIn(f"resumed from {parts}/checkpoints/step-2", error)
        self.assertEqual(final_model(parts).read_bytes(), final_model(whole).read_bytes())


class Refusals(Case):
    def test_invalid_layouts_give_one_line_that_names_the_settings(self):
        for ranks, flags, words in [
                (2, "--strategy pp --layers 1", ("--pp", "--layers")),
                (2, "--strategy pp --pp-split 2,1,1", ("--pp-split",)),
                (2, "--strategy pp --pp-split 4,0", ("--pp-split",)),
                (2, "--strategy pp --schedule-pp interleaved:2 --microbatch 8", ("--schedule-pp",)),
                (2, "--strategy pp --schedule-pp later", ("--schedule-pp",)),
                (4, "--strategy 3d --pp 3", ("--pp",)),
                (3, "--strategy tp", ("--tp", "--heads")),
                (2, "--strategy mp", ("--strategy",))]:
            with self.subTest(flags):
                error = self.train("refused", ranks, *flags.split(), status=2)
                error = error.splitlines()[-1]
                self.assertTrue(error.startswith("dtrain: error: "), error)  # once, without blaming a rank
                self.assertEqual(error.count("error: "), 1, error)
                for word in words:
                    self.assertIn(word, error)
                self.assertFalse((self.folder / "refused/metrics.jsonl").exists())


if __name__ == "__main__":
    unittest.main()
