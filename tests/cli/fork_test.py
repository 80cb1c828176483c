"""A new run that starts from another run's checkpoint or weights inherits its settings."""

import json
import re
import shutil
import unittest

from dtrain_harness import USAGE, launched, make_folder, metrics_of, run, xxh3
from messages import assert_names, lines_naming

TINY = ["--levels", "2", "--width", "32", "--heads", "2", "--neurons", "64", "--seq-len", "32", "--global-batch", "4",
        "--microbatch", "1", "--lr", "2e-3", "--threads", "1", "--checkpoint-every", "3", "--val-fraction", "0.1"]
CHECKPOINT = 6


def losses(folder):
    return [(line["step"], line["loss"], line["grad_norm"]) for line in metrics_of(folder) if "loss" in line]


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
                self.assertEqual(lines_naming(error, "changed settings"), [])
                saved = self.settings(fork)
                self.assertEqual((saved["run"]["dir"], saved["checkpoint"]["resume"]), (str(fork), "none"))
                self.assertEqual(saved["data"]["train"], str(self.root / "home/text.txt"))
        self.assertEqual(len(losses(self.origin)), 6)

    def test_a_fork_without_a_run_folder_is_reported_as_a_new_run(self):
        error = self.train("--resume", self.origin, "--steps", 7).stderr
        assert_names(error, f"--run-dir {self.origin} --resume auto")
        self.assertEqual([step for step, *_ in losses(self.root / "elsewhere/runs/text-1")], [7])
        self.assertEqual(len(losses(self.origin)), 6)

    def test_flags_win_over_the_forked_runs_settings(self):
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

    def test_a_checkpoint_outside_a_run_has_its_settings_in_the_manifest(self):
        alone, fork = self.new("copy"), self.new("fork")
        shutil.copytree(self.origin / "checkpoints/step-6", alone)
        error = self.train("--resume", alone, "--run-dir", fork, "--steps", 9, cwd="home").stderr
        self.assertIn(f"come from {alone}/manifest.json", error)
        self.assertEqual(losses(fork), losses(self.whole)[6:])

    def test_an_order_of_sums_that_is_gone_is_told_and_refused_by_a_strict_resume(self):
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
                self.assertEqual([saved[key] for key in ("levels", "width", "heads", "neurons")], [2, 32, 2, 64])
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
        file.write_text(json.dumps({"model": {"width": 64, "levels": 3}}))
        error = self.start(self.origin, "--config", file)
        self.assertIn(f"--init-from {self.origin} replaces --levels 3, --width 64", error)
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
        self.assertEqual([step for step, *_ in losses(self.new("new"))], [1, 2])


if __name__ == "__main__":
    unittest.main()
