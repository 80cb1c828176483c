"""A rejected start leaves no new folder, parent folder or lock, for any reason and number of ranks; the front end does not change
the run folder."""

import json
import os
import pathlib
import struct
import unittest

from dtrain_harness import (
    CHECKPOINT, DATA, DTRAIN, DTRUN, GOLDEN, SOURCE, USAGE, FolderTest, front_end_alone, launched, make_folder, run)
from messages import assert_names, error_line

TEXT = GOLDEN / "text.bin"
SMALL = ("--layers", "1", "--width", "16", "--heads", "2", "--neurons", "16", "--seq-len", "16", "--threads", "1", "--log-every", "0", "--steps", "1",
         "--sample-every", "0", "--checkpoint-every", "0")


class Refused(FolderTest):
    def tree(self):
        return sorted(str(path.relative_to(self.folder)) for path in pathlib.Path(self.folder).rglob("*"))

    def contents(self):
        return {name: (self.folder / name).read_bytes() for name in self.tree() if (self.folder / name).is_file()}

    def refused(self, status, *flags, ranks=1, data=TEXT, run_dir="runs/a/b", program=()):
        before = self.tree()
        where = ("--run-dir", run_dir) if run_dir else ()
        command = (*program, DTRAIN, *SMALL, "--data", data, *where, *flags) if program else launched(ranks, *SMALL, "--data", data, *where, *flags)
        result = run(*command, cwd=self.folder, status=None)
        self.assertEqual(result.returncode, status, result.stderr)
        self.assertEqual(self.tree(), before, result.stderr)
        return result.stderr

    def test_rejected_before_the_rendezvous(self):
        (self.folder / "bad.dtok").write_bytes(b"DTOK" + bytes(100))
        for run_dir in ("runs/a/b", ""):
            self.refused(DATA, data="missing.txt", run_dir=run_dir)
            self.refused(DATA, data="bad.dtok", run_dir=run_dir)
            self.refused(USAGE, "--neurons", "15", run_dir=run_dir)
            self.refused(USAGE, "--global-batch", "7", ranks=2, run_dir=run_dir)
            self.refused(CHECKPOINT, "--resume", "nothere", run_dir=run_dir)

    def test_rejected_after_the_rendezvous(self):
        flags = {"memory": ("--memory-limit", "1kB"), "a frozen name": ("--freeze", "nothing.of.this.name")}
        for run_dir, (name, refused) in zip(("runs/a/b", ""), flags.items()):
            with self.subTest(name, run_dir=run_dir):
                self.refused(USAGE, *refused, ranks=2, run_dir=run_dir)
        self.refused(USAGE, "--memory-limit", "1kB")
        self.refused(USAGE, "--freeze", "nothing.of.this.name", "--strategy", "dp", "--local-ranks", "2")

    def test_ranks_with_different_settings(self):
        shell = ("sh", "-c", '[ "$RANK" = 0 ] && set -- "$@" --lr 1e-5; exec "$@"', "rank")
        self.assertIn("train.lr", self.refused(USAGE, program=(DTRUN, "-n", "2", "--", *shell), run_dir=""))

    def test_rejected_after_the_folder_was_created(self):
        run(DTRAIN, *SMALL, "--data", TEXT, "--run-dir", "old", cwd=self.folder)
        for ranks, run_dir in ((1, "runs/a/b"), (1, "runs/a/"), (2, "")):
            with self.subTest(ranks=ranks, run_dir=run_dir):
                self.refused(USAGE, "--resume", "old", "--seed", "7", run_dir=run_dir, ranks=ranks)

    def test_an_existing_folder_is_left_unchanged(self):
        run(DTRAIN, *SMALL, "--data", TEXT, "--run-dir", "old", cwd=self.folder)
        (self.folder / "runs/a").mkdir(parents=True)
        self.refused(USAGE, "--resume", "old", "--seed", "7")
        self.refused(USAGE, "--resume", "old", "--seed", "7", run_dir="")
        self.refused(USAGE, "--resume", "old", "--seed", "7", run_dir="runs/a")  # no lock is left in it
        self.assertIn("old/lock", self.tree())
        self.refused(USAGE, "--resume", "auto", "--seed", "7", run_dir="old")
        (self.folder / "old/lock").unlink()
        self.refused(USAGE, "--resume", "auto", "--seed", "7", run_dir="old")
        # The run can be started afterwards.
        run(DTRAIN, *SMALL, "--data", TEXT, "--run-dir", "runs/a/b", cwd=self.folder)
        self.assertTrue((self.folder / "runs/a/b/lock").exists())

    def test_a_rejected_overwrite_leaves_the_old_run_unchanged(self):
        run(DTRAIN, *SMALL, "--data", TEXT, "--run-dir", "old", cwd=self.folder)
        before = self.contents()
        self.assertIn("old/final/model.safetensors", before)
        for flags in (("--freeze", "nothing"), ("--memory-limit", "1kB")):
            with self.subTest(flags):
                self.assertIn(flags[0], self.refused(USAGE, "--overwrite", *flags, run_dir="old"))
                self.assertEqual(self.contents(), before)

    def test_a_dangling_link_occupies_a_name_without_failing_the_start(self):
        (self.folder / "runs").mkdir()
        (self.folder / "runs/text-1").symlink_to("unmounted/run")
        run(DTRAIN, *SMALL, "--data", TEXT, cwd=self.folder)
        self.assertTrue((self.folder / "runs/text-2/config.json").exists())

    def test_other_tools_leave_no_files(self):
        before = self.tree()
        for command in (("data", "prepare", "missing.txt", "--output", "new/x.dtok"), ("checkpoint", "import", "missing.safetensors", "new/checkpoint"),
                        ("checkpoint", "export", "missing", "new/x.safetensors"), ("report", "missing", "--output", "new/x.html"),
                        ("data", "tokenizer", "train", "missing.txt", "--vocab-size", "300", "--output", "new/x.model"),
                        ("doctor", "--data", "missing.txt", "--run-dir", "new/run")):
            result = run(DTRAIN, *command, cwd=self.folder, status=None)
            self.assertNotEqual(result.returncode, 0, command)
            self.assertEqual(self.tree(), before, command)


class FrontEnd(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = make_folder(cls)
        cls.program = front_end_alone(cls.root)
        cls.text = cls.root / "text.txt"
        cls.text.write_text("And the evening and the morning were the first day.\n" * 40)

    def setUp(self):
        self.run_dir = self.root / self.id().rsplit(".", 1)[-1]

    def train(self, *arguments, variables=None):
        environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
        return run(self.program, "--data", self.text, "--seq-len", "16", "--run-dir", self.run_dir, *arguments, status=None,
                   env={**environment, **(variables or {})})

    def test_the_library_receives_the_configuration_and_returns_the_status(self):
        result = self.train("--config", SOURCE / "configs/experiments/mini.json", "--threads", "2", "--checkpoint-every", "0")
        self.assertEqual((result.returncode, result.stderr), (42, ""))
        request = json.loads(result.stdout)
        self.assertEqual(request["command"], "train")
        config = request["config"]
        self.assertEqual(config["batch"], {"global": 8, "microbatch": 1, "grad_accum": 8})
        self.assertEqual((config["machine"]["threads"], config["machine"]["backend"]), (2, "none"))
        self.assertEqual(config["train"]["lr"], 3e-3)
        self.assertFalse(self.run_dir.exists(), "created too early")

    def test_a_current_folder_that_config_json_cannot_contain(self):
        for name, folder, data, status in (("a,b", b"a,b", "x:1,y:1", USAGE), ("a,b", b"a,b", "x", 42),
                                           ("caf\ufffd", b"caf\xe9", "x", USAGE), ("caf\ufffd", b"caf\xe9", self.text, 42)):
            with self.subTest(name, data=data):
                current = self.root / os.fsdecode(folder)
                current.mkdir(exist_ok=True)
                for file in "xy":
                    (current / file).write_bytes(self.text.read_bytes())
                result = run(self.program, "--data", data, "--seq-len", "16", "--run-dir", self.run_dir, cwd=current,
                             status=status)
                if status == USAGE:
                    error_line(result.stderr, name)

    def test_nothing_is_removed_before_the_job_starts(self):
        (self.run_dir / "final").mkdir(parents=True)
        header = b'{"__metadata__": {"dtrain.model": "{}"}}'
        old = {"config.json": b'{"model": {"layers": 1}, "train": {"steps": 1}, "layout": {"strategy": ""}, "run": {"dir": ""}}',
               "metrics.jsonl": b'{"event":"start","parameters":1}\n',
               "final/model.safetensors": struct.pack("<Q", len(header)) + header}
        for name, content in old.items():
            (self.run_dir / name).write_bytes(content)
        self.assertEqual(self.train().returncode, 2)
        self.assertEqual(self.train("--overwrite").returncode, 42)
        for name, content in old.items():
            self.assertEqual((self.run_dir / name).read_bytes(), content)

    def test_any_trace_of_a_run_protects_the_folder(self):
        for name in ("metrics.jsonl", "final/model.safetensors"):
            file = self.run_dir / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("old")
            result = self.train()
            self.assertEqual(result.returncode, 2)
            self.assertIn(name, result.stderr)
            file.unlink()
        self.assertEqual(self.train().returncode, 42)

    def test_other_ranks_do_not_touch_the_folder(self):
        self.run_dir.mkdir()
        (self.run_dir / "config.json").write_text("written by rank 0")
        ranks = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
        result = self.train("--strategy", "ddp", variables=ranks)
        self.assertEqual((result.returncode, result.stderr), (42, ""))
        self.assertTrue((self.run_dir / "config.json").exists())

    def test_evaluation_without_validation_data_warns(self):
        result = self.train("--eval-every", "5")
        self.assertEqual(result.returncode, 42)
        assert_names(result.stderr, "warning", "--eval-every 5")


if __name__ == "__main__":
    unittest.main()
