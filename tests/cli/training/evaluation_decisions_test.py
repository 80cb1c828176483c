"""Decisions based on losses: the best checkpoint, patience, samples, the spike guard; on any layout, across restarts."""

import json
import pathlib
import random
import shutil
import tempfile
import unittest

from dtrain_harness import CONSTANT_RATE
from dtrain_harness import CHECKPOINT, DTRAIN, GOLDEN, USAGE, final_model, launched, make_folder, metrics_of, overriding, run
from messages import assert_names, lines_naming

TEXT = GOLDEN / "text.bin"
MODEL = [*CONSTANT_RATE, "--layers", "2", "--width", "16", "--heads", "2", "--neurons", "16", "--seq-len", "16", "--threads", "1", "--log-every", "0",
         "--tensorboard", "off"]
PROMPT = "In the"
KEEPING = ("--checkpoint-every", "5", "--keep-last", "2", "--keep-best", "--keep-every", "55")  # waits for the save of step 55


def losses(run_dir):
    return [(line["step"], line["loss"], line["grad_norm"]) for line in metrics_of(run_dir) if "event" not in line]


def events(run_dir, name):
    return [line for line in metrics_of(run_dir) if line.get("event") == name]


def evaluations(run_dir):
    return [(line["step"], line["val_loss"]) for line in events(run_dir, "eval")]


def kept_steps(run_dir):
    return sorted(int(path.name.removeprefix("step-")) for path in (run_dir / "checkpoints").iterdir())


class RunTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = make_folder(cls)

    def new_dir(self):
        return pathlib.Path(tempfile.mkdtemp(dir=self.folder))

    def train(self, *flags, ranks=1, run_dir=None, status=0):
        run_dir = run_dir or self.new_dir()
        result = run(*launched(ranks, *MODEL, "--run-dir", run_dir, *flags), status=status)
        return run_dir, result.stdout + result.stderr


class Decisions(RunTest):
    """Trains on random bytes, which can only be memorized: the validation loss falls, then rises."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        numbers = random.Random(5)
        cls.noise = cls.folder / "noise"
        cls.noise.write_bytes(bytes(numbers.choice(b"etaoin shrdlu") for _ in range(400)))
        cls.flags = ["--data", cls.noise, "--val-data", TEXT, "--eval-every", "4", "--eval-sequences", "16", "--lr", "0.01",
                     "--global-batch", "4", "--microbatch", "1"]

    def test_a_run_out_of_patience_ends_and_names_the_reason(self):
        left_alone, _ = self.train(*self.flags, "--steps", "80")
        found = evaluations(left_alone)
        best_step, best_loss = min(found, key=lambda pair: pair[1])
        self.assertLess(best_step, 60, "this test needs a loss that rises")
        expected, since, lowest = None, 0, float("inf")
        for step, loss in found:
            since = 0 if loss < lowest else since + 1
            lowest = min(lowest, loss)
            if since == 3:
                expected = step
                break
        for ranks, layout in ((1, []), (2, ["--strategy", "ddp"])):
            run_dir, output = self.train(*self.flags, "--steps", "80", "--patience", "3", *layout, ranks=ranks)
            self.assertEqual(losses(run_dir), losses(left_alone)[:expected])
            (end,) = events(run_dir, "end")
            self.assertEqual((end["step"], end["reason"]), (expected, "--patience 3"))
            self.assertEqual((end["best_step"], end["best_val_loss"]), (best_step, best_loss))
            self.assertIn(f"ended by --patience 3: {expected} steps", output)
            self.assertTrue(final_model(run_dir).exists())
        # It is over: another start has nothing to train, with more patience it goes on.
        _, output = self.train("--resume", "auto", run_dir=run_dir)
        assert_names(output, "--patience 3", f"step {expected}")
        self.assertNotIn("nothing left", output)
        self.assertEqual(len(losses(run_dir)), expected)
        self.train("--resume", "auto", "--patience", "5", run_dir=run_dir)
        self.assertEqual(losses(run_dir), losses(left_alone)[:expected + 8])

    def test_the_best_checkpoint_is_kept_when_others_are_pruned(self):
        flags = [*self.flags, *KEEPING]
        run_dir, output = self.train(*flags, "--steps", "60")
        best = min(evaluations(run_dir), key=lambda pair: pair[1])
        self.assertLess(best[0], 55, "this test needs a loss that rises")
        self.assertEqual(kept_steps(run_dir), [best[0], 55, 60])
        (end,) = events(run_dir, "end")
        path = run_dir / "checkpoints" / f"step-{best[0]}"
        self.assertEqual((end["best_step"], end["best_val_loss"], end["best_checkpoint"]), (*best, str(path)))
        self.assertIn(f"after step {best[0]}: {path}", output)
        # A later start knows it, too.
        self.train("--resume", "auto", "--steps", "70", run_dir=run_dir)
        self.assertEqual(kept_steps(run_dir), [best[0], 55, 65, 70])
        # Its weights are those that were evaluated.
        weights = self.folder / "best.safetensors"
        run(DTRAIN, "checkpoint", "export", path, weights)
        again, _ = self.train(*self.flags, "--init-from", path, "--lr", "0", "--steps", "1", "--eval-every", "0")
        self.assertAlmostEqual(evaluations(again)[0][1], best[1], places=6)

    def test_the_best_checkpoint_is_kept_while_the_storage_does_not_respond(self):
        flags = [*self.flags, *KEEPING]
        run_dir, _ = self.train(*flags, "--steps", "60")
        best, _ = min(evaluations(run_dir), key=lambda pair: pair[1])
        self.assertLess(best, 55, "this test needs a loss that rises")
        manifest = run_dir / "checkpoints" / f"step-{best}" / "manifest.json"
        resume = launched(1, *MODEL, "--run-dir", run_dir, "--resume", "auto", "--steps", "70")
        run("strace", "-f", "-o", "/dev/null", "-P", manifest, "-e", "trace=newfstatat", "-e", "inject=newfstatat:error=EMFILE",
            *resume, status=CHECKPOINT)
        self.assertEqual(kept_steps(run_dir), [best, 55, 60])
        run(*resume)
        self.assertEqual(kept_steps(run_dir), [best, 55, 65, 70])

    def test_the_best_checkpoint_is_kept_if_the_save_of_a_better_one_fails(self):
        flags = [*self.flags, *KEEPING]
        left_alone, _ = self.train(*self.flags, "--steps", "60")
        lowest, bests = float("inf"), []
        for step, loss in evaluations(left_alone):
            if loss < lowest:
                lowest, bests = loss, [*bests, step]
        earlier, best = bests[-2:]
        self.assertLess(best, 55, "this test needs a loss that rises")
        run_dir, _ = self.train(*flags, "--steps", str(earlier))
        in_the_way = run_dir / "checkpoints" / f"step-{best}"
        in_the_way.mkdir()
        (in_the_way / "notes.txt").write_text("mine")
        _, output = self.train("--resume", "auto", "--steps", "60", run_dir=run_dir)
        assert_names(output, f"step {best}")
        self.assertEqual(kept_steps(run_dir), [earlier, best, 55, 60])
        self.train("--resume", "auto", "--steps", "70", run_dir=run_dir)
        self.assertEqual(kept_steps(run_dir), [earlier, best, 55, 65, 70])

    def test_losses_on_other_sequences_are_not_compared(self):
        flags = [*self.flags, "--checkpoint-every", "4", "--patience", "9"]
        run_dir, _ = self.train(*flags, "--steps", "8")
        _, output = self.train("--resume", "auto", "--steps", "12", "--eval-sequences", "3", run_dir=run_dir)
        assert_names(output, "report.eval_sequences", "3", "16")
        manifest = json.loads((run_dir / "checkpoints" / "step-12" / "manifest.json").read_text())
        self.assertEqual(manifest["history"]["validation"]["best_step"], 12)

    def start_without_validation(self, *flags):
        """A run of 8 steps with evaluations and 4 more without: its record of losses, and its folder."""
        run_dir, _ = self.train(*self.flags, "--checkpoint-every", "4", "--keep-last", "2", "--patience", "9", *flags, "--steps", "8")
        self.train(*self.flags, "--val-data", "", "--resume", "auto", "--steps", "12", run_dir=run_dir)
        self.assertEqual(self.record(run_dir, 12), self.record_of(evaluations(run_dir)))
        return run_dir

    def record(self, run_dir, step):
        validation = json.loads((run_dir / "checkpoints" / f"step-{step}" / "manifest.json").read_text())["history"]["validation"]
        return validation["best_step"], validation["best_loss"]

    def record_of(self, found):
        return min(found, key=lambda pair: pair[1])

    def test_a_record_survives_launches_without_its_data_and_is_not_used_for_other_data(self):
        run_dir = self.start_without_validation("--keep-best")
        kept = shutil.copytree(run_dir, self.new_dir() / "kept")
        known = self.record(run_dir, 12)
        again = [*self.flags, "--resume", "auto", "--steps", "16"]
        # Its own data: what comes is compared with what was.
        _, output = self.train(*again, run_dir=kept)
        self.assertEqual(lines_naming(output, "warning", "--patience"), [])
        self.assertEqual(self.record(kept, 16), min([known, *evaluations(kept)], key=lambda pair: pair[1]))
        # Other data, on which the first evaluation is the lowest, however high; no checkpoint of another record is kept.
        other = self.folder / "other"
        other.write_bytes(bytes(range(32, 127)) * 50)
        _, output = self.train(*again, "--val-data", other, run_dir=run_dir)
        self.assertEqual(len(lines_naming(output, "warning", "--patience", f"step {known[0]},")), 1)
        new = [pair for pair in evaluations(run_dir) if pair[0] >= 12]
        self.assertEqual(self.record(run_dir, 16), self.record_of(new))
        self.assertGreater(self.record(run_dir, 16)[1], known[1])
        self.assertEqual(kept_steps(run_dir), sorted({12, 16, self.record_of(new)[0]}))
        (end,) = events(run_dir, "end")[-1:]
        self.assertEqual((end["best_step"], end["best_val_loss"]), self.record_of(new))

    def test_settings_that_need_evaluations_are_refused_without(self):
        _, output = self.train("--data", TEXT, "--steps", "1", "--patience", "2", "--keep-best")
        for flag in ("--patience 2", "--keep-best"):
            assert_names(output, "warning", flag, "--val-data", "--val-fraction")


class Samples(RunTest):
    def generated(self, run_dir, *flags):
        return run(DTRAIN, "generate", "--from", run_dir, "--prompt", PROMPT, "--threads", "1", *flags, text=False, errors=None).stdout

    def test_samples_match_generate_and_change_no_bit(self):
        flags = ["--data", TEXT, "--steps", "6", "--tie-layers", "off", "--microbatch", "1", "--global-batch", "4"]
        asked = ["--sample-every", "3", "--sample-prompt", PROMPT]
        for ranks, layout in ((1, []), (2, ["--strategy", "fsdp"]), (2, ["--strategy", "pp"]), (2, ["--strategy", "tp"]),
                              (1, ["--strategy", "dp", "--local-ranks", "2"])):
            with self.subTest(layout):
                without, _ = self.train(*flags, *layout, ranks=ranks)
                run_dir, output = self.train(*flags, *layout, *asked, ranks=ranks)
                self.assertEqual(losses(run_dir), losses(without))
                self.assertEqual(final_model(run_dir).read_bytes(), final_model(without).read_bytes())
                samples = events(run_dir, "sample")
                self.assertEqual([each["step"] for each in samples], [3, 6])
                text = self.generated(run_dir).decode("utf-8", errors="replace")
                self.assertTrue(samples[1]["text"].startswith(PROMPT))
                self.assertEqual(len(self.generated(run_dir)), len(PROMPT) + 200)
                # Control characters and what is no UTF-8 are shown in other ways by the two.
                plain = [c for c in text if c.isprintable() and c not in "?\ufffd"]
                shown = [c for c in samples[1]["text"] if c.isprintable() and c not in "?\ufffd"]
                self.assertEqual(shown, plain)
                self.assertIn("step 6 | sample: " + PROMPT, output)

    def test_samples_beyond_the_memory_limit_are_refused(self):
        flags = ["--data", TEXT, "--steps", "1", "--width", "64", "--neurons", "1024"]
        run_dir, _ = self.train(*flags)
        predicted = sum(events(run_dir, "start")[0]["memory_predicted_bytes"].values())
        limit = ["--memory-limit", str(predicted + 10_000)]
        self.train(*flags, *limit)
        _, output = self.train(*flags, *limit, "--sample-every", "1", status=USAGE)
        assert_names(output, "--sample-every", "--memory-limit")
        self.assertIn("more than --memory-limit", output)
        self.train(*flags, "--memory-limit", str(2 * predicted), "--sample-every", "1")

    def test_a_prompt_that_is_too_long_is_refused(self):
        _, output = self.train("--data", TEXT, "--sample-every", "1", "--sample-prompt", "x" * 65400, status=USAGE)
        self.assertIn("--sample-prompt has 65400 bytes", output)


class Spikes(RunTest):
    """Trains on an easy text with a few sequences of noise."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        numbers = random.Random(7)
        sequences = [b"abcdefgh" * 2] * 160
        for place in (20, 70, 110):
            sequences[place] = bytes(numbers.randrange(256) for _ in range(16))
        text = cls.folder / "text"
        text.write_bytes(b"".join(sequences) + b"a")
        cls.flags = ["--data", text, "--steps", "400", "--global-batch", "2", "--microbatch", "1", "--checkpoint-every", "240"]

    def warnings(self, run_dir):
        return [(line["step"], "update skipped" in line["message"]) for line in events(run_dir, "error")
                if ": spike: " in line["message"]]

    def test_spikes_are_skipped_on_all_ranks_alike(self):
        plain, _ = self.train(*self.flags)
        self.assertEqual(self.warnings(plain), [])
        warned, output = self.train(*self.flags, "--spike-guard", "warn")
        found = self.warnings(warned)
        self.assertEqual(losses(warned), losses(plain))
        self.assertIn("spike: gradient norm", output)
        self.assertGreaterEqual(len(found), 1)
        self.assertTrue(all(step > 50 and not skipped for step, skipped in found))

        skipped, _ = self.train(*self.flags, "--spike-guard", "skip")
        first = found[0][0]
        self.assertEqual(self.warnings(skipped)[0], (first, True))
        # The step with the spike is the same, and what follows was spared its update.
        self.assertEqual(losses(skipped)[:first], losses(plain)[:first])
        self.assertNotEqual(losses(skipped)[first], losses(plain)[first])
        self.assertEqual(events(skipped, "end")[0]["skipped_updates"], len(self.warnings(skipped)))

        shared, _ = self.train(*self.flags, "--spike-guard", "skip", "--strategy", "ddp", ranks=2)
        self.assertEqual(losses(shared), losses(skipped))
        self.assertEqual(final_model(shared).read_bytes(), final_model(skipped).read_bytes())

        # From the checkpoint of step 240 the guard decides as if never interrupted.
        manifest = json.loads((skipped / "checkpoints" / "step-240" / "manifest.json").read_text())
        self.assertEqual(manifest["history"]["spike_levels"]["grad_norm"]["num_steps"], 240)
        resumed, _ = self.train(*self.flags, "--spike-guard", "skip", "--resume", skipped / "checkpoints" / "step-240")
        self.assertEqual(losses(resumed), losses(skipped)[240:])
        self.assertEqual(final_model(resumed).read_bytes(), final_model(skipped).read_bytes())

    def test_too_many_skipped_updates_in_a_row_end_the_run(self):
        flags = overriding(self.flags, "--spike-guard", "skip", "--spike-threshold", "1e-9", "--max-skipped", "2",
                           "--data", TEXT, "--lr", "0")
        run_dir, output = self.train(*flags, status=7)
        self.assertIn("more than --max-skipped 2", output)
        self.assertIn("--spike-threshold", output)
        # A run that resumes amid the skipped updates ends at the same one.
        (failure,) = events(run_dir, "failure")
        resumed, _ = self.train(*overriding(flags, "--steps", failure["step"]))
        self.train(*flags, "--resume", "auto", run_dir=resumed, status=7)
        self.assertEqual([event["step"] for event in events(resumed, "failure")], [failure["step"]])


if __name__ == "__main__":
    unittest.main()
