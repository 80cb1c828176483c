"""The front end's output and errors for valid and invalid settings."""

import errno
import json
import os
import shutil
import subprocess
import unittest

from dtrain_harness import CHECKPOINT, DATA, DTRAIN, GOLDEN, SOURCE, USAGE, FolderTest, front_end_alone, run
from messages import assert_names, error_line, lines_naming

FIRST, SECOND = ({"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"} for rank in (0, 1))


class Case(FolderTest):
    def setUp(self):
        super().setUp()
        self.write("text.txt", "In the beginning God created the heaven and the earth.\n" * 40)


class Printing(Case):
    def resolved(self, *arguments, **options):
        result = run(DTRAIN, "--print-config", *arguments, **options)
        self.assertEqual(result.stderr, "")
        return json.loads(result.stdout)

    def test_the_version_goes_to_standard_output(self):
        self.assertRegex(run(DTRAIN, "--version").stdout, r"^dtrain \d+\.\d+\.\d+ \(commit ([0-9a-f]{12}(-modified)?|unknown)\)\n$")

    def test_every_configuration_of_the_repository_resolves(self):
        files = sorted(SOURCE.glob("configs/*/*.json"))
        self.assertEqual(len(files), 11)
        for file in files:
            self.resolved("--config", file)

    def test_no_value_stays_automatic(self):
        config = self.resolved("--config", SOURCE / "configs/experiments/mini.json", "--strategy", "ddp", environment={**FIRST, "OMP_NUM_THREADS": "3"})
        self.assertEqual(config["batch"], {"global": 8, "microbatch": 1, "grad_accum": 4})
        self.assertEqual([config["layout"][key] for key in ("strategy", "dp", "nnodes", "shard_size", "accumulate")], ["ddp", 2, 1, 1, "local"])
        self.assertEqual([config["machine"][key] for key in ("device", "backend", "threads")], ["cpu", "shm", 3])

    def test_the_printed_settings_are_a_configuration_file(self):
        first = self.resolved("--config", SOURCE / "configs/experiments/small.json", "--lr", "0.1234567890123456789")
        self.assertEqual(self.resolved("--config", self.write("printed.json", json.dumps(first))), first)
        self.assertEqual(first["train"]["lr"], 0.1234567890123456789)

    def test_only_rank_0_prints(self):
        result = run(DTRAIN, "--print-config", "--strategy", "ddp", environment=SECOND)
        self.assertEqual((result.stdout, result.stderr), ("", ""))

    def test_settings_page_is_current(self):
        page = (SOURCE / "docs" / "guide" / "settings.md").read_text()
        self.assertEqual(page, run(DTRAIN, "settings").stdout, "write it with: dtrain settings > docs/guide/settings.md")

    def test_a_full_disk_is_reported(self):
        text = GOLDEN / "text.bin"
        for words in (["settings"], ["--help"], ["help", "lr"], ["--version"], ["--print-config"], ["data", "info", text],
                      ["plan", "--data", text, "--ranks", "2"], ["doctor"], ["completion", "bash"]):
            with self.subTest(words[0]), open("/dev/full", "w") as full:
                result = run(DTRAIN, *words, status=USAGE, capture_output=False, stdout=full, stderr=subprocess.PIPE)
                self.assertEqual(result.stderr.count("\n"), 1)
                assert_names(result.stderr, "dtrain: error", os.strerror(errno.ENOSPC))


class Rejections(Case):
    def test_unavailable_backends_and_devices_are_rejected(self):
        for name in ("nccl", "NCCL"):
            self.refused(f"--backend {name}", "--backend", "nccl", "--device cuda")
        self.refused("--device tpu", "--device", "auto, cpu")

    def test_contradictory_settings_are_rejected(self):
        """More cases: tests/unit/plain/config/resolve_test.cpp."""
        self.refused("--global-batch 8 --microbatch 2 --grad-accum 3", "8", "2", "3", "6")
        self.refused("--strategy single", "--strategy single", "2", "--strategy ddp", environment=FIRST)
        self.refused("--strategy ddp", "MASTER_ADDR", "dtrun -n 2", environment=FIRST)

    def test_missing_and_invalid_files_are_rejected(self):
        self.write("empty", "")
        for words, status, *names in (
                ("--run-dir run", USAGE, "--data"), ("--run-dir run --data /nowhere", DATA, "/nowhere"), ("--run-dir run --data empty", DATA, "empty"),
                ("--run-dir run --data text.txt --seq-len 4096", DATA, "text.txt", "--seq-len"), ("generate", USAGE, "--from"),
                ("generate --from text.txt --prompt x", CHECKPOINT, "text.txt"), ("verify", USAGE, "--golden"),
                ("verify --golden /nowhere", CHECKPOINT, "/nowhere")):
            self.refused(words, *names, status=status)
        self.assertFalse((self.folder / "run").exists())

    def test_an_impossible_run_folder_is_rejected(self):
        for run_dir in ("text.txt", "text.txt/below"):
            self.refused(f"--data text.txt --seq-len 16 --run-dir {run_dir}", "text.txt")
        result = run(DTRAIN, *"--data text.txt --seq-len 16 --run-dir /proc/run".split(), cwd=self.folder, status=USAGE)
        error_line(result.stderr, "/proc/run")

    def test_other_ranks_wait_for_the_first_to_report_an_error(self):
        with self.assertRaises(subprocess.TimeoutExpired) as caught:
            run(DTRAIN, "--neurons", "7", environment=SECOND, timeout=0.4)
        self.assertFalse(caught.exception.stderr)
        self.refused("", "--data", environment={**SECOND, "MASTER_ADDR": "localhost", "MASTER_PORT": "1"})  # printed if no launcher ends it


class Families(Case):
    def test_a_familys_settings_are_checked_without_libtorch(self):
        words = [front_end_alone(self.folder), *"--data text.txt --seq-len 16 --run-dir run --model gpt2 --width 48".split()]
        error = run(*words, "--heads", "5", cwd=self.folder, status=USAGE).stderr
        error_line(error, "--heads 5", "--width 48")
        self.assertEqual(error.count("\n"), 1)
        result = run(*words, "--heads", "3", "--neurons", "64", cwd=self.folder, status=42)  # the stand-in was asked
        self.assertEqual(len(lines_naming(result.stderr, "warning", "--neurons", "--model gpt2")), 1)
        model = json.loads(result.stdout)["config"]["model"]
        self.assertEqual((model["name"], model["learned_positions"]), ("gpt2", 1024))
        self.assertNotIn("neurons", model)


class LibTorchMissing(Case):
    def test_it_is_reported_in_one_line(self):
        """A copy of the program without libdtrain.so changes no file."""
        program = self.folder / "bin" / "dtrain"
        program.parent.mkdir()
        shutil.copy(DTRAIN, program)
        config = self.write("run/config.json", '{"model": {"layers": 1}, "train": {"steps": 1}, "layout": {"strategy": ""}, "run": {"dir": ""}}')
        result = run(program, *"--data text.txt --width 32 --seq-len 16 --run-dir run --overwrite".split(), cwd=self.folder, status=USAGE)
        self.assertEqual(result.stderr.count("\n"), 1)
        assert_names(result.stderr, "libdtrain.so", "scripts/setup.sh")
        self.assertTrue(config.exists())


if __name__ == "__main__":
    unittest.main()
