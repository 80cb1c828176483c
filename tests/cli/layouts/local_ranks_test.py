"""Ranks as threads of one process: bits, files, exits and errors as with processes."""

import signal

from dtrain_harness import BUILD, front_end_alone, make_folder, run
from messages import assert_names, error_line, lines_naming
from resume_test import ResumeTest
from train_test import DTRAIN, DTRUN

DP = ("--strategy", "dp")
VALIDATION = ("--val-fraction", "0.05", "--eval-sequences", "16", "--eval-every", "4", "--dropout", "0.1",
              "--checkpoint-every", "4")


class LocalRanks(ResumeTest):
    def dp(self, *flags, **options):
        return self.single(*DP, *flags, **options)

    def evaluations(self, run_dir):
        return [(line["step"], line["val_loss"]) for line in self.events("eval", run_dir)]

    def test_threads_have_the_bits_of_processes_and_of_one_rank(self):
        runs = {name: self.root / name for name in ("one", "processes", "two", "four")}
        self.single(*VALIDATION, "--grad-accum", "4", steps=8, run_dir=runs["one"])
        self.ddp(*VALIDATION, "--grad-accum", "2", steps=8, run_dir=runs["processes"])
        self.dp(*VALIDATION, "--grad-accum", "2", steps=8, run_dir=runs["two"])
        # Resumed by processes and by threads again.
        self.dp(*VALIDATION, "--grad-accum", "1", "--devices", "cpu,cpu,cpu,cpu", steps=3, run_dir=runs["four"])
        self.ddp(*VALIDATION, "--grad-accum", "2", "--resume", "auto", steps=5, run_dir=runs["four"])
        self.dp(*VALIDATION, "--grad-accum", "1", "--local-ranks", "4", "--resume", "auto", steps=8, run_dir=runs["four"])
        for name in ("processes", "two", "four"):
            self.assert_same_run(runs[name], runs["one"])
        for name in ("processes", "two"):
            self.assertEqual(self.evaluations(runs[name]), self.evaluations(runs["one"]))
        self.assertEqual(len(self.evaluations(runs["one"])), 2)
        self.assertEqual([line["step"] for line in self.events("resume", runs["four"])], [3, 5])
        start = self.events("start", runs["two"])[0]
        self.assertEqual((start["world_size"], start["mesh"], start["backend"]), (2, {"pp": 1, "dp": 2, "tp": 1}, "local"))

    def test_the_start_shows_the_layout(self):
        result = self.dp("--local-ranks", "4", "--grad-accum", "1", "--verbose", steps=1)
        text = result.stderr
        self.assertRegex(result.stdout + text, r"memory +[\d.]+ \w+ measured .* 4 ranks")
        self.assertIn("layout          pp 1 x dp 4 x tp 1, backend local, device cpu\n", text)
        self.assertNotIn("groups  ", text)  # a single group of all ranks

    def test_a_signal_to_the_process_saves_once_and_says_so(self):
        process = self.start(*DP)
        self.wait_for_step(3)
        process.send_signal(signal.SIGTERM)
        error = self.end_of(process, 9)
        self.assertEqual(len(lines_naming(error, "SIGTERM", "saved")), 1, error)
        saved = self.steps_saved()
        self.assertEqual(len(saved), 1)
        self.assertEqual(saved[0], self.losses()[-1][0])
        verified = self.run_command([DTRAIN, "checkpoint", "verify", self.run_dir])
        self.assertEqual(verified.returncode, 0, verified.stderr)

    def test_a_time_limit_stops_all_ranks(self):
        assert_names(self.end_of(self.start(*DP, "--time-limit", "1s"), 9), "--time-limit", "saved")

    def test_the_first_error_ends_all_threads_in_one_line(self):
        result = self.dp("--lr", "1e30", "--grad-clip", "0", steps=20, status=7)
        errors = [line for line in result.stderr.splitlines() if "error:" in line]
        self.assertEqual(len(errors), 1, result.stderr)
        self.assertIn("loss", errors[0])

    def test_an_error_of_rank_0_alone_is_reported_unchanged(self):
        # The others only learn that rank 0 has failed; whichever reports first, the cause is printed.
        process = self.start(*DP)
        self.wait_for_step(2)
        error = self.dp("--resume", "auto", steps=1000000, status=2).stderr
        error_line(error, f"process {process.pid}")
        process.send_signal(signal.SIGTERM)
        self.end_of(process, 9)

    def test_per_rank_settings_apply_to_each_thread(self):
        # With a different number of threads the order of additions, and so the bits, would differ.
        one, two = self.root / "one-thread", self.root / "two-threads"
        self.single("--grad-accum", "2", "--threads", "2", "--checkpoint-every", "3", steps=6, run_dir=one)
        self.dp("--grad-accum", "1", "--threads", "2", "--checkpoint-every", "3", steps=6, run_dir=two)
        self.assert_same_run(two, one)

    def test_launched_processes_and_gpus_are_rejected(self):
        for strategy, instead in (("dp", "ddp"), ("mp", "pp")):
            result = self.run_command([DTRUN, "-n", "2", "--", DTRAIN, *map(str, self.arguments("--strategy", strategy, steps=1))], 2)
            assert_names(result.stderr, f"--strategy {strategy}")
            self.assertIn(f"use --strategy {instead}", result.stderr)
        has_plugin = (BUILD / "lib" / "libdtrain_cuda.so").exists()
        needs = "--device" if has_plugin else "GPU 0"
        for flags, part in ((["--devices", "0,0"], "GPU 0"),
                            (["--devices", "0,1", "--device", "cpu"], needs),
                            (["--devices", "cpu,cpu", "--local-ranks", "3"], "--local-ranks is 3"),
                            (["--backend", "shm"], "--backend shm")):
            result = self.dp(*flags, steps=1, status=2)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
            self.assertIn(part, result.stderr)
        self.assertFalse(self.run_dir.exists())

    def test_axis_settings_without_effect_trigger_warnings(self):
        front_end = front_end_alone(make_folder(self))
        for flags, flag in ((["--schedule-pp", "gpipe"], "--schedule-pp"), (["--pp-split", "3,5"], "--pp-split"),
                            (["--tp-vocab", "on"], "--tp-vocab"), (["--data-axis", "fsdp"], "--data-axis"),
                            (["--local-ranks", "2"], "--local-ranks"), (["--devices", "cpu"], "--devices")):
            text = run(front_end, *self.arguments(*flags, steps=1), status=42).stderr
            self.assertEqual(len(lines_naming(text, "warning", flag)), 1, text)


if __name__ == "__main__":
    import unittest
    unittest.main()
