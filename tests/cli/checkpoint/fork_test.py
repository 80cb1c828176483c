"""A new run that starts from another run's checkpoint or weights inherits its settings."""

import json
import pathlib
import re
import shutil
import unittest

from dtrain_harness import CONSTANT_RATE, DTRAIN, USAGE, launched, make_folder, metrics_of, overriding, run, xxh3
from messages import assert_names, error_line, lines_naming

TINY = [*CONSTANT_RATE, "--layers", "2", "--width", "32", "--heads", "2", "--neurons", "64", "--seq-len", "32", "--global-batch", "4",
        "--microbatch", "1", "--lr", "2e-3", "--threads", "1", "--checkpoint-every", "3", "--val-fraction", "0.1"]
CHECKPOINT = 6


def losses(folder):
    return [(line["step"], line["loss"], line["grad_norm"]) for line in metrics_of(folder) if "loss" in line]


def samples(folder):
    return [(line["step"], line["samples"], line["tokens"]) for line in metrics_of(folder) if "loss" in line]


def table_of(error):
    """The rows of the settings that differ from the checkpoint's: name, checkpoint's value, value now."""
    lines = error.splitlines()
    head = [i for i, line in enumerate(lines) if re.fullmatch(r" +checkpoint +now", line)]
    rows = []
    for line in lines[head[0] + 1:] if head else []:
        if not re.match(r"  \S", line):
            break
        rows.append(re.split(r"  +", line.strip()))
    return rows


def change_manifest(path, change):
    """Changes a checkpoint's manifest and makes its checksums right."""
    manifest = json.loads(path.read_text())
    del manifest["xxh3"]
    change(manifest)
    manifest["config_xxh3"] = f"{xxh3(json.dumps(manifest['config'], sort_keys=True, separators=(',', ':')).encode()):016x}"
    body = json.dumps(manifest, indent=1)[1:] + "\n"
    path.write_text(f'{{"xxh3": "{xxh3(body.encode()):016x}",{body}')


class Runs(unittest.TestCase):
    """A run of 6 steps, and the same run with 9."""

    @classmethod
    def setUpClass(cls):
        cls.root = make_folder(cls)
        (cls.root / "home").mkdir()
        (cls.root / "elsewhere").mkdir()
        (cls.root / "home/text.txt").write_text("In the beginning God created the heaven and the earth.\n" * 90)
        cls.origin = cls.root / "origin"
        cls.train(*TINY, "--data", "text.txt", "--steps", 6, "--run-dir", cls.origin, cwd="home")
        cls.whole = cls.root / "whole"
        cls.train(*TINY, "--data", "text.txt", "--steps", 9, "--run-dir", cls.whole, cwd="home")

    @classmethod
    def train(cls, *arguments, cwd="elsewhere", ranks=1, status=0):
        return run(*launched(ranks, *arguments), cwd=cls.root / cwd, status=status)

    def settings(self, folder):
        return json.loads((folder / "config.json").read_text())

    def new(self, name):
        return self.root / f"{self.id().rsplit('.', 1)[-1]}-{name}"


class Forks(Runs):
    def test_a_fork_needs_no_settings(self):
        for name, start, step in (("run", "../origin", 6), ("checkpoint", "../origin/checkpoints/step-3", 3),
                                  ("slash", "../origin/checkpoints/step-6/", 6)):
            with self.subTest(name):
                fork = self.new(name)
                error = self.train("--resume", start, "--run-dir", fork, "--steps", 9).stderr
                self.assertEqual(losses(fork), losses(self.whole)[step:])
                assert_names(error, re.compile("/config.json"))
                self.assertEqual(table_of(error), [["train.steps", "6", "9"]])
                self.assertEqual(lines_naming(error, "warning"), [])
                saved = self.settings(fork)
                self.assertEqual((saved["run"]["dir"], saved["checkpoint"]["resume"]), (str(fork), "none"))
                self.assertEqual(saved["data"]["train"], str(self.root / "home/text.txt"))
        self.assertEqual(len(losses(self.origin)), 6)

    def test_a_fork_without_a_run_folder_is_reported_as_a_new_run(self):
        error = self.train("--resume", self.origin, "--steps", 7).stderr
        assert_names(error, f"--run-dir {self.origin} --resume auto")
        self.assertEqual([step for step, *_ in losses(self.root / "elsewhere/runs/text-1")], [7])
        self.assertEqual(len(losses(self.origin)), 6)

    def test_flags_override_the_forked_runs_settings(self):
        fork = self.new("fork")
        error = self.train("--resume", self.origin, "--run-dir", fork, "--steps", 8, "--lr", 1e-3, "--strategy", "fsdp",
                           ranks=2).stderr
        assert_names(error, "train.lr", "0.001", "0.002")
        saved = self.settings(fork)
        self.assertEqual((saved["layout"]["strategy"], saved["train"]["lr"], saved["model"]["width"]), ("fsdp", 1e-3, 32))
        self.assertEqual([step for step, *_ in losses(fork)], [7, 8])

    def test_a_fork_may_validate_on_another_file(self):
        (self.root / "elsewhere/valid.txt").write_text("And God said, Let there be light: and there was light.\n" * 20)
        fork = self.new("fork")
        # The held-out share would be trained on: rejected as other data, in one line.
        error = self.train("--resume", self.origin, "--run-dir", fork, "--steps", 9, "--val-data", "valid.txt", status=USAGE).stderr
        self.assertIn("--val-data valid.txt replaces --val-fraction 0.1", error)
        self.assertEqual(error.count("dtrain: error:"), 1)

    def test_a_fork_on_other_ranks_keeps_its_bits_or_names_what_does_not_divide(self):
        fork = self.new("fork")
        shutil.copy(self.root / "home/text.txt", self.root / "elsewhere/moved.txt")
        error = self.train("--resume", self.origin, "--run-dir", fork, "--steps", 9, "--data", "moved.txt", ranks=2).stderr
        assert_names(error, "--strategy ddp", "single", "2 ranks")
        self.assertEqual(self.settings(fork)["report"], self.settings(self.origin)["report"])  # no demo defaults
        self.assertEqual(losses(fork), losses(self.whole)[6:])
        error = self.train("--resume", self.origin, "--run-dir", self.new("three"), ranks=3, status=USAGE).stderr
        assert_names(error, "--global-batch 4", "3", self.origin)
        error = self.train("--resume", fork, "--run-dir", self.new("one"), "--steps", 10).stderr
        self.assertEqual(self.settings(self.new("one"))["layout"]["strategy"], "ddp")
        self.assertEqual(lines_naming(error, "dtrun -n 2"), [])  # the command has no --strategy

    def test_a_checkpoint_outside_a_run_has_its_settings_in_the_manifest(self):
        alone, fork = self.new("copy"), self.new("fork")
        shutil.copytree(self.origin / "checkpoints/step-6", alone)
        error = self.train("--resume", alone, "--run-dir", fork, "--steps", 9, cwd="home").stderr
        self.assertIn(f"come from {alone}/manifest.json", error)
        self.assertEqual(losses(fork), losses(self.whole)[6:])

    def test_a_removed_order_of_sums_is_reported_and_rejected_by_a_strict_resume(self):
        run_dir, fork = self.new("old"), self.new("fork")
        shutil.copytree(self.origin, run_dir)
        change_manifest(run_dir / "checkpoints/step-6/manifest.json",
                        lambda manifest: manifest["config"].setdefault("layout", {}).update(tied_reshard="per-use"))
        names = (f"{run_dir}/checkpoints/step-6", "layout.tied_reshard", "per-use")
        auto = ("--run-dir", run_dir, "--resume", "auto")
        error = self.train(*auto, "--steps", 9, "--strict-resume", status=CHECKPOINT).stderr
        assert_names(error, *names, "--strict-resume")
        for flags in (("--resume", run_dir, "--run-dir", fork), auto):
            error = self.train(*flags, "--steps", 9).stderr
            self.assertEqual(len(lines_naming(error, "warning", *names)), 1, error)
            self.assertEqual(len(lines_naming(error, "layout.tied_reshard")), 1, error)
        # The checkpoints of the new build add in the one order that it has.
        error = self.train(*auto, "--steps", 10, "--strict-resume").stderr
        self.assertEqual(lines_naming(error, "layout.tied_reshard"), [])

    def test_a_path_without_a_run_is_rejected(self):
        error = self.train("--resume", "nothing", "--run-dir", self.new("fork"), status=CHECKPOINT).stderr
        assert_names(error, "--resume nothing")
        self.assertFalse(self.new("fork").exists())


class Weights(Runs):
    """--init-from."""

    def start(self, weights, *flags, name="new", status=0, ranks=1):
        return self.train("--init-from", weights, "--data", "../home/text.txt", "--seq-len", 32, "--steps", 1, "--threads", 1,
                          "--run-dir", self.new(name), *flags, status=status, ranks=ranks).stderr

    def test_the_sizes_come_with_the_weights(self):
        alone = self.new("alone")
        shutil.copytree(self.origin / "final", alone / "final")
        found = set()
        for number, (weights, named) in enumerate((
                (self.origin, "checkpoints/step-6"), (self.origin / "checkpoints/step-3", "checkpoints/step-3"),
                (self.origin / "final/model.safetensors", "final/model.safetensors"),
                (self.origin / "final", "final/model.safetensors"), (alone / "final", "final/model.safetensors"))):
            with self.subTest(named):
                error = self.start(weights, name=str(number))
                self.assertRegex(error, rf"weights from \S*{named}, new optimizer\n")
                saved = self.settings(self.new(str(number)))["model"]
                self.assertEqual([saved[key] for key in ("layers", "width", "heads", "neurons")], [2, 32, 2, 64])
                if "step-3" not in named:
                    found.add(losses(self.new(str(number)))[0])
        self.assertEqual(len(found), 1)

    def test_a_run_without_checkpoints_gives_its_model(self):
        small = self.new("small")
        self.train(*TINY, "--data", "text.txt", "--steps", 1, "--run-dir", small, "--checkpoint-every", "none", cwd="home")
        self.assertIn("final/model.safetensors, new optimizer", self.start(small))
        self.assertNotIn("new optimizer", self.start(small, "-q", name="quiet"))

    def test_sizes_that_contradict_the_weights_are_rejected_with_both_values(self):
        error = self.start(self.origin, "--width", 64, "--heads", 2, status=USAGE)
        (line,) = [line for line in error.splitlines() if "error:" in line]
        assert_names(line, "--width 64", "32")
        self.assertNotIn("--heads", line)
        self.assertFalse(self.new("new").exists())
        self.start(self.origin, "--width", 32, "--dropout", 0.3)
        self.assertEqual(self.settings(self.new("new"))["model"]["dropout"], 0.3)

    def test_the_flag_overrides_sizes_of_a_file(self):
        file = self.root / "sizes.json"
        file.write_text(json.dumps({"model": {"width": 64, "layers": 3}}))
        error = self.start(self.origin, "--config", file)
        self.assertIn(f"--init-from {self.origin} replaces --layers 3, --width 64", error)
        file.write_text(json.dumps({"model": {"width": 64}, "checkpoint": {"init_from": str(self.origin)}}))
        error = self.train("--config", file, "--data", "../home/text.txt", "--run-dir", self.new("refused"), status=USAGE).stderr
        assert_names(error, "--width 64", "32")

    def test_the_same_command_resumes_when_the_weights_are_gone(self):
        source, sizes = self.new("source"), self.root / "larger.json"
        sizes.write_text(json.dumps({"model": {"width": 64}}))  # the flag's weights override it at every start
        command = ["--config", sizes, "--init-from", source, "--data", "../home/text.txt", "--seq-len", 32, "--threads", 1,
                   "--run-dir", self.new("new"), "--resume", "auto", "--checkpoint-every", 1]
        shutil.copytree(self.origin, source)
        self.train(*command, "--steps", 1)
        shutil.rmtree(source)
        self.train(*command, "--steps", 2)
        (self.new("new") / "config.json").unlink()  # the flags then have to describe the model
        self.train(*command, *TINY[TINY.index("--layers"):TINY.index("--seq-len")], "--steps", 3)
        self.assertEqual([step for step, *_ in losses(self.new("new"))], [1, 2, 3])

    def test_a_restart_resumes_when_the_weights_are_gone(self):
        source = shutil.copytree(self.origin / "final", self.new("source"))
        command = launched(1, "--init-from", source, "--data", "../home/text.txt", "--seq-len", 32, "--threads", 1, "--steps", 1,
                           "--run-dir", self.new("new"), "--checkpoint-every", 1)
        for attempt in (0, 1):
            error = run(*command, cwd=self.root / "elsewhere",
                        environment={"TORCHELASTIC_RUN_ID": "weights", "TORCHELASTIC_RESTART_COUNT": str(attempt)}).stderr
            shutil.rmtree(source, ignore_errors=True)
        assert_names(error, self.new("new") / "checkpoints/step-1")
        self.assertEqual(self.settings(self.new("new"))["model"]["width"], 32)

    def test_a_rank_that_lacks_the_weights_names_them(self):
        places = self.new("places")
        shutil.copytree(self.origin / "final", places / "0/final")
        (places / "1").mkdir()
        command = launched(2, "-c", f'cd "{places}/$RANK" && exec "$@"', "sh", DTRAIN, "--init-from", "final",
                           "--data", self.root / "home/text.txt", "--seq-len", 32, "--steps", 1, "--threads", 1,
                           "--run-dir", self.new("new"), program="sh")
        assert_names(run(*command, status=CHECKPOINT).stderr, "--init-from final")
        self.assertFalse(self.new("new").exists())


class NewData(Runs):
    """--new-data: the step, the model and the optimizer of a checkpoint, and data from its beginning."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.root / "home/other.txt").write_text("And God said, Let there be light: and there was light.\n" * 70)
        cls.other = ["--new-data", "--data", cls.root / "home/other.txt"]
        cls.fork = cls.root / "new-data"
        cls.told = cls.train("--resume", cls.origin, "--run-dir", cls.fork, *cls.other, "--steps", 12).stderr

    def copy(self, name):
        """The run of 6 steps in a folder of its own."""
        return pathlib.Path(shutil.copytree(self.origin, self.new(name)))

    def test_step_model_and_optimizer_continue_and_the_data_begins(self):
        self.assertEqual(samples(self.fork), [(step, 4 * (step - 6), 4 * 32 * step) for step in range(7, 13)])
        weights = self.new("weights")
        self.train("--init-from", self.origin, *self.other[1:], "--run-dir", weights, *self.batch(), "--steps", 2)
        first, second = (losses(folder) for folder in (self.fork, weights))
        self.assertEqual(first[0][1:], second[0][1:])  # the same weights read the same samples
        self.assertNotEqual(first[1][1:], second[1][1:])  # the optimizer is another

    def batch(self):
        return ["--seq-len", 32, "--global-batch", 4, "--microbatch", 1, "--lr", "2e-3", "--val-fraction", 0.1, "--threads", 1]

    def test_the_start_reports_differences_and_epochs_of_the_data(self):
        rows = table_of(self.told)
        self.assertEqual([row[0] for row in rows], ["train.steps", "data.train", "data.validation"])
        assert_names(self.told, "warning", f"{self.origin}/checkpoints/step-6")
        assert_names(self.told, re.compile(r"^data .* epochs in 6 steps"))

    def test_a_plain_resume_and_the_same_command_continue_in_the_new_data(self):
        for name, flags in (("plain", ()), ("same", self.other)):
            run_dir = self.copy(name)
            self.train("--run-dir", run_dir, "--resume", "auto", *self.other, "--steps", 8)
            self.assertFalse(self.settings(run_dir)["checkpoint"]["new_data"])
            error = self.train("--run-dir", run_dir, "--resume", "auto", *flags, "--steps", 10).stderr
            self.assertEqual(bool(lines_naming(error, "--new-data", "6")), bool(flags), error)
            self.train("--run-dir", run_dir, "--resume", "auto", "--steps", 12)
            self.assertEqual(losses(run_dir)[6:], losses(self.fork))
            self.assertEqual(samples(run_dir)[6:], samples(self.fork))

    def test_layouts_over_the_data_axis_have_equal_bits(self):
        run_dir = self.copy("ddp")
        self.train("--run-dir", run_dir, "--resume", "auto", *self.other, "--steps", 12, "--strategy", "fsdp", "--microbatch", 1, ranks=2)
        self.assertEqual(losses(run_dir)[6:], losses(self.fork))

    def test_another_batch_sequence_length_and_seed_need_it(self):
        flags = ("--global-batch", 8, "--seq-len", 16, "--seed", 3)
        error = self.train("--resume", self.origin, "--run-dir", self.new("refused"), "--steps", 8, *flags, status=USAGE).stderr
        assert_names(error, "batch.global", "data.seq_len", "train.seed", "--new-data")
        fork = self.new("fork")
        error = self.train("--resume", self.origin, "--run-dir", fork, "--steps", 8, *flags, "--new-data").stderr
        self.assertTrue([["data.seq_len", "32", "16"], ["batch.global", "4", "8"]] == table_of(error)[:2], error)
        self.assertEqual(samples(fork), [(7, 8, 6 * 128 + 128), (8, 16, 6 * 128 + 256)])
        # A model is refused as ever.
        error = self.train("--resume", self.origin, "--run-dir", self.new("refused"), "--layers", 3, *flags, "--new-data",
                           status=USAGE).stderr
        assert_names(error, "model.layers", "3", "2")
        self.assertNotIn("data.seq_len", error)

    def test_a_file_that_grew_is_refused_and_begun_with_the_flag_alone(self):
        text = self.root / "home/grown.txt"
        shutil.copy(self.root / "home/text.txt", text)
        run_dir = self.new("run")
        self.train(*TINY, "--data", text, "--steps", 3, "--run-dir", run_dir)
        text.write_text(text.read_text() * 2)
        resumed = ("--run-dir", run_dir, "--resume", "auto", "--steps", 5)
        assert_names(self.train(*resumed, status=USAGE).stderr, "data.train", text, "--new-data")
        error = self.train(*resumed, "--new-data").stderr
        self.assertEqual([row[0] for row in table_of(error)], ["train.steps", "data.train", "data.validation"])
        self.assertEqual([number for _, number, _ in samples(run_dir)], [4, 8, 12, 4, 8])

    def test_other_validation_alone_is_refused_and_begun_with_the_flag(self):
        valid, other = self.root / "home/first.txt", self.root / "home/second.txt"
        valid.write_text("And the evening and the morning were the first day.\n" * 20)
        other.write_text("And the evening and the morning were the second day.\n" * 20)
        run_dir = self.new("run")
        self.train(*overriding([*TINY, "--data", "text.txt", "--steps", 3, "--run-dir", run_dir], "--val-fraction", 0, "--val-data", valid),
                   cwd="home")
        resumed = ("--run-dir", run_dir, "--resume", "auto", "--val-data", other)
        assert_names(self.train(*resumed, "--steps", 5, status=USAGE).stderr, "data.validation", other, "--new-data")
        error = self.train(*resumed, "--steps", 5, "--new-data").stderr
        self.assertEqual([row[0] for row in table_of(error)], ["train.steps", "data.validation"])
        error = self.train(*resumed, "--steps", 6, "--new-data").stderr
        self.assertEqual(len(lines_naming(error, "--new-data", "3")), 1, error)
        self.assertEqual([number for _, number, _ in samples(run_dir)], [4, 8, 12, 4, 8, 12])

    def test_unsupported_uses_are_rejected_in_one_line(self):
        other = self.other[1:]
        for flags, *names in ((("--data", "text.txt", "--new-data"), "--new-data", "--resume"),
                              (("--resume", self.origin, "--new-data", "--init-from", self.origin, *other), "--new-data", "--init-from"),
                              (("--resume", self.origin, "--new-data"), "--new-data", f"{self.origin}/checkpoints/step-6"),
                              (("--resume", self.fork, *self.other), "--new-data", f"{self.fork}/checkpoints/step-12"),
                              (("--resume", "auto", *self.other), "--new-data", "--run-dir"),
                              (("--resume", self.origin, *self.other, "--epochs", 1), "--epochs", "6", "--steps")):
            run_dir = self.new("refused")
            error_line(self.train(*flags, "--run-dir", run_dir, cwd="home", status=USAGE).stderr, *names)
            self.assertFalse(run_dir.exists())

    def test_a_validation_record_stays_with_its_own_data(self):
        (self.root / "home/valid.txt").write_text("And the evening and the morning were the first day.\n" * 20)
        run_dir, watched = self.new("run"), ("--val-fraction", 0, "--val-data", "valid.txt", "--eval-every", 3, "--patience", 50)
        self.train(*overriding([*TINY, "--data", "text.txt", "--steps", 3, "--run-dir", run_dir], *watched), cwd="home")
        error = self.train("--run-dir", run_dir, "--resume", "auto", *self.other, "--steps", 6).stderr
        self.assertEqual([line["step"] for line in metrics_of(run_dir) if line.get("event") == "eval"], [3, 6])
        self.assertEqual(lines_naming(error, "--patience"), [])
        history = json.loads((run_dir / "checkpoints/step-6/manifest.json").read_text())["history"]
        self.assertEqual((history["data_step"], history["validation"]["last_step"]), (3, 6))
        error = self.train("--run-dir", run_dir, "--resume", "auto", "--new-data", "--val-data", "text.txt", "--data", "text.txt",
                           "--steps", 9, cwd="home").stderr
        assert_names(error, "--patience")

    def test_the_learning_rate_stands_first(self):
        error = self.train("--resume", self.origin, "--run-dir", self.new("fork"), "--steps", 8, "--lr", "1e-3", "--weight-decay", 0,
                           "--threads", 2).stderr
        self.assertEqual(table_of(error)[:2], [["learning rate", "0.002 (step 7)", "0.001 (step 7)"], ["train.lr", "0.002", "0.001"]])
        self.assertIn("train.weight_decay", [row[0] for row in table_of(error)])


if __name__ == "__main__":
    unittest.main()
