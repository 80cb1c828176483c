"""Memory: predicted, measured, limited, compared with a machine's memory; recomputation changes no bit."""

import pathlib
import re
import resource
import subprocess
import tempfile
import unittest

from dtrain_harness import CONSTANT_RATE, DTRAIN, DTRUN, GOLDEN, front_end_alone, launched, make_folder, need_mounts, run
from messages import assert_names, lines_naming
from train_test import TINY, TrainTest

SIZES = [*CONSTANT_RATE, "--layers", "4", "--width", "64", "--heads", "4", "--neurons", "256", "--seq-len", "64", "--global-batch", "8",
         "--microbatch", "8"]


class Memory(TrainTest):
    def train(self, name, *flags, status=0):
        """(start event, peak in bytes, the recompute line of the start table, the model's bytes)"""
        folder = self.run_dir / name
        result = self.single(*SIZES, *flags, status=status, run_dir=folder)
        if status != 0:
            return result.stderr
        lines = self.metrics(folder)
        memory = next(line for line in lines if line.get("event") == "memory")
        self.assertEqual(list(memory), ["event", "step", "predicted_bytes", "peak_bytes"])
        self.assertEqual(memory["step"], 3)
        self.assertEqual(memory["predicted_bytes"], sum(lines[0]["memory_predicted_bytes"].values()))
        self.assertRegex(result.stderr, r"\nmemory: predicted [^,]+, measured peak [^ ]+ \w+ \(predicted/measured \d+%\)\n")
        self.assertLess(abs(memory["predicted_bytes"] / memory["peak_bytes"] - 1), 0.05)
        policy = re.search(r"\nrecompute +(.*)\n", result.stderr)
        policy = policy[1] if policy else "off"
        return memory["predicted_bytes"], memory["peak_bytes"], policy, (folder / "final/model.safetensors").read_bytes()

    def test_auto_meets_three_limits_with_three_policies_and_equal_bits(self):
        none, level = self.train("none"), self.train("level", "--recompute", "level")
        self.assertLess(level[1], none[1])
        limits = [none[0], (none[0] + level[0]) // 2, level[0]]
        runs = [self.train(str(limit), "--recompute", "auto", "--memory-limit", str(limit)) for limit in limits]
        for limit, (predicted, peak, _, model) in zip(limits, runs):
            self.assertLessEqual(predicted, limit)
            self.assertLessEqual(peak, limit)
            self.assertEqual(model, none[3])
        self.assertEqual(len({policy for _, _, policy, _ in runs}), 3)
        self.assertEqual(runs[0][2], none[2])
        self.assertRegex(runs[1][2], r"^[12] of 4 .*\b1 .*\(\d+% .*\)$")
        self.assertRegex(runs[2][2], "^3 of 4")  # the last level runs backward first, so keeping its graph is free

    def test_an_unmeetable_limit_is_rejected_with_the_largest_part_and_settings_that_fit(self):
        for flags in (("--recompute", "auto"), ("--recompute", "level"), ()):
            error = self.train("refused", *flags, "--memory-limit", "1MB", status=2)
            error = error.splitlines()[-1]  # preceded by a note on the batch
            self.assertRegex(error, r"^dtrain: error: --memory-limit 1MB .* MiB.*[\d.]+ [kM]iB; ")
        least = float(re.search(r"at least ([\d.]+) MiB with --recompute auto", error)[1])
        self.train("fits", "--recompute", "auto", "--memory-limit", f"{least + 0.1:.1f}MiB")

    def alternatives(self, error):
        """[(flags, ranks or None)] that the one-line rejection predicts to fit."""
        (line,) = {line.split("error: ")[1] for line in error.splitlines() if "dtrain: error:" in line}
        found = re.findall(r"((?:--[\w-]+ [\w-]+ )+)(?:on (\d+) ranks? )?\(", line.split(" use ")[-1])
        self.assertTrue(found, line)
        return [(flags.split(), int(ranks) if ranks else None) for flags, ranks in found]

    def test_suggested_settings_fit(self):
        model = ["--layers", "2", "--width", "64", "--heads", "4", "--neurons", "512", "--seq-len", "32", "--global-batch", "8",
                 "--checkpoint-every", "0"]
        for name, start, limit, ranks, wanted in (
                ("activations", ["--microbatch", "8"], "14MiB", 1, "--microbatch"),
                ("state", ["--microbatch", "4", "--strategy", "ddp"], "11MiB", 2, "--zero-stage"),
                ("both", ["--microbatch", "8"], "8MiB", 1, "--strategy")):
            with self.subTest(name):
                def train(number, *flags, on=ranks, status=0, start=start, limit=limit, name=name):
                    words = launched(on, *TINY, *model, *start, *flags, "--data", self.text, "--steps", "1", "--memory-limit", limit,
                                     "--run-dir", self.run_dir / f"{name}{number}")
                    return self.run_command(words, status).stderr

                found = self.alternatives(train("", status=2))
                self.assertIn(wanted, [flag for flags, _ in found for flag in flags])
                for number, (flags, on) in enumerate(found):
                    train(number, *flags, on=on or ranks)

    def test_the_checkpoint_copy_is_predicted_and_measured(self):
        plain = self.train("plain", "--neurons", "1024", "--seq-len", "8", "--checkpoint-every", "0")
        saving = self.train("saving", "--neurons", "1024", "--seq-len", "8", "--checkpoint-every", "1")
        self.assertGreater(saving[0], 1.2 * plain[0])  # train() compares it with the measurement

    def compare(self, name, launcher, *flags, backend, few_percent=0.05):
        """Predicted and measured peaks, after three steps and of the whole run. The thread that executes a call varies, and with
        it the memory in use."""
        folder = self.run_dir / name
        self.run_command([*launcher, DTRAIN, *self.arguments(*SIZES, *flags, "--global-batch", "16", run_dir=folder)])
        lines = self.metrics(folder)
        self.assertEqual(lines[0]["backend"], backend)
        memory = next(line for line in lines if line.get("event") == "memory")
        end = next(line for line in lines if line.get("event") == "end")
        for predicted, measured in ((memory["predicted_bytes"], memory["peak_bytes"]),
                                    (end["predicted_memory_bytes"], end["memory_bytes"])):
            self.assertLess(abs(predicted / measured - 1), few_percent, f"{name}: {predicted} and {measured}")

    def test_nodes_of_one_host_are_predicted_for_the_backend_in_use(self):
        nodes = [DTRUN, "--emulate-nodes", "2", "-n", "2", "--"]
        self.compare("auto", nodes, "--strategy", "ddp", "--microbatch", "1", backend="shm")
        self.compare("gloo", nodes, "--strategy", "fsdp", "--microbatch", "1", "--backend", "gloo", backend="gloo")

    def test_saves_and_the_end_of_sharded_runs_are_predicted(self):
        two = [DTRUN, "-n", "2", "--"]
        small = ("--microbatch", "1", "--seq-len", "8")
        # Independent of threads: all but numbers and lists of some KiB is predicted. A matrix is 3 % of it.
        self.compare("last", two, "--strategy", "ddp", *small, backend="shm", few_percent=0.01)
        self.compare("every", two, "--strategy", "ddp", *small, "--checkpoint-every", "1", backend="shm")
        self.compare("zero", two, "--strategy", "zero", "--zero-stage", "1", *small, backend="shm")
        self.compare("fsdp", two, "--strategy", "fsdp", "--dtype", "bfloat16", *small, backend="shm")
        self.compare("tp", two, "--strategy", "tp", *small, backend="shm")
        self.compare("pp", two, "--strategy", "pp", *small, backend="shm")
        frozen = ("--freeze", "encoder,lm_head", *small)
        self.compare("frozen-ddp", two, "--strategy", "ddp", *frozen, backend="shm", few_percent=0.01)
        self.compare("frozen-zero", two, "--strategy", "zero", "--zero-stage", "2", *frozen, backend="shm")

    def test_samples_and_odd_evaluations_are_excluded_from_the_comparison(self):
        """Here a sample takes more memory than a step."""
        flags = ["--neurons", "1024", "--seq-len", "8", "--global-batch", "1", "--microbatch", "1", "--sample-every", "1",
                 "--eval-every", "1", "--eval-sequences", "13"]
        self.single(*SIZES, *flags)
        memory, end = (next(line for line in self.metrics() if line.get("event") == event) for event in ("memory", "end"))
        self.assertLess(abs(memory["predicted_bytes"] / memory["peak_bytes"] - 1), 0.05)
        self.assertLess(abs(end["predicted_memory_bytes"] / end["memory_bytes"] - 1), 0.05)

    def test_bad_values_and_a_setting_without_effect_are_reported(self):
        for flags, name in ((("--recompute", "every:0"), "--recompute"), (("--memory-limit", "0.5"), "--memory-limit")):
            self.assertIn(f"{name}: found", self.train("bad", *flags, status=2))
        result = run(front_end_alone(make_folder(self)), *self.arguments("--recompute", "auto", steps=1), status=42)
        assert_names(result.stderr, "warning", "--recompute auto", "--memory-limit")
        result = self.single("--backend", "shm", "--overwrite", steps=1, status=2)
        assert_names(result.stderr, "--backend shm")


GIANT = ["--width", "1024", "--neurons", "65536", "--global-batch", "4096", "--microbatch", "4096"]  # terabytes
USAGE, MEMORY = 2, 8


class MachineMemory(unittest.TestCase):
    def train(self, *flags, launcher=(), before=None):
        """(status, standard error); no run may begin."""
        with tempfile.TemporaryDirectory(prefix="dtrain-machine-memory-") as folder:
            run = pathlib.Path(folder) / "run"
            command = [*launcher, DTRAIN, "--data", GOLDEN / "text.bin", "--run-dir", run, *GIANT, *flags]
            result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, preexec_fn=before)
            self.assertFalse((run / "metrics.jsonl").exists())
        return result.returncode, result.stderr

    def tebibytes(self, error, subject):
        """Returns the prediction in the error line."""
        lines = [line for line in error.splitlines() if "dtrain: error:" in line]
        for line in lines:
            self.assertEqual(line.split("dtrain: error: ")[1], lines[0].split("dtrain: error: ")[1])
        found = re.search(rf"error: {subject} .*?([\d.]+) TiB .*, and [\d.]+ \wiB .*?\((.+?)\)", lines[0])
        self.assertIsNotNone(found, error)
        self.assertRegex(lines[0], r": [\w' ]+ takes? the most, [\d.]+ [TG]iB; use ")
        self.assertIn("--memory-limit", lines[0])
        return float(found[1])

    def test_a_model_beyond_the_machine_is_rejected_with_flags_that_help(self):
        status, error = self.train()
        self.assertEqual(status, USAGE, error)
        self.assertGreater(self.tebibytes(error, "this process"), 1)
        status, error = self.train("--recompute", "level")
        self.assertEqual(status, USAGE, error)

    def test_a_model_too_large_for_this_machine_is_rejected_with_the_ranks_that_fit(self):
        status, error = self.train("--layers", "24", "--width", "2048", "--tie-layers", "off", "--global-batch", "64", "--microbatch", "1")
        self.assertEqual(status, USAGE, error)
        self.assertRegex(error, r"[\d.]+ [GT]iB; use --strategy (fsdp|tp) .*on \d+ ranks \([\d.]+ [GM]iB .*\d+ machines")

    def test_the_ranks_of_a_machine_count_together(self):
        one = self.tebibytes(self.train("--microbatch", "2048")[1], "this process")
        for launcher, strategy in (((DTRUN, "-n", "2", "--"), "ddp"), ((), "dp")):
            status, error = self.train("--microbatch", "2048", "--strategy", strategy, launcher=launcher)
            self.assertEqual(status, USAGE, error)
            two = self.tebibytes(error, r"the 2 ranks [^(]*\(0 to 1\)")
            self.assertAlmostEqual(two / one, 2, delta=0.1)

    def test_a_user_limit_takes_precedence_and_running_out_names_what_helps(self):
        def little_room():
            resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

        status, error = self.train("--memory-limit", "1000TiB", before=little_room)
        self.assertEqual(status, MEMORY, error)
        for part in ("error: out", "--recompute level", "--microbatch", "TiB predicted"):
            self.assertIn(part, error)
        self.assertEqual(lines_naming(error, "error: this process"), [])


class Containers(TrainTest):
    def test_ranks_in_two_containers_of_a_machine_are_not_counted_against_the_memory_of_one(self):
        need_mounts(self)
        alike = ("--backend", "gloo", "--microbatch", "1")  # what a container may change
        self.ddp(*alike, steps=1)
        need = sum(self.metrics()[0]["memory_predicted_bytes"].values())
        meminfo = self.root / "meminfo"  # memory for one and a half ranks, as a container's own /proc may report it
        meminfo.write_text(f"MemTotal: 99999999 kB\nMemAvailable: {need * 3 // 2 // 1024} kB\n")
        inside = ["unshare", "-m", "sh", "-c", 'mount --bind "$0" /proc/meminfo; exec "$@"', str(meminfo)]
        rank = [DTRAIN, "--strategy", "ddp", *self.arguments(*alike, "--overwrite", steps=1)]
        result = self.run_command([*inside, DTRUN, "-n", "2", "--", *rank], 2)
        assert_names(result.stderr, "2 ranks", "0 to 1")
        self.run_command([DTRUN, "-n", "2", "--", *inside, *rank])


if __name__ == "__main__":
    unittest.main()
