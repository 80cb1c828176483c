"""dtrain plan and --strategy auto: predictions match runs, the best layout fits, rejected ones say why, and ranks keep the chosen
layout."""

import json
import re
import shlex
import unittest
from pathlib import Path

from dtrain_harness import DATA, DTRAIN, DTRUN, USAGE, FolderTest, launched, metrics_of, overriding, run
from messages import assert_names, lines_naming

TINY = ("--layers", "2", "--width", "32", "--heads", "2", "--neurons", "64", "--seq-len", "32", "--global-batch", "8", "--microbatch",
        "2", "--threads", "1")
LARGE = ("--layers", "24", "--width", "2048", "--heads", "16", "--neurons", "8192", "--tie-layers", "off", "--seq-len", "2048",
         "--global-batch", "8192", "--device-tflops", "400", "--dtype", "bfloat16")
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
ROW = re.compile(r" *(\d+) +(\d+) +([\d.]+) (\w+) +([\d.]+) (\w+) +([\d.]+) +([\d.]+ m?s) +\d+% +([\d,.]+k?)  (--.*)")


class Plan(FolderTest):
    def plan(self, *flags, status=0):
        return run(DTRAIN, "plan", *flags, cwd=self.folder, status=status)

    def rows(self, result):
        """Layout -> ranks, bytes per rank, bytes sent, bubble."""
        found = {}
        for line in result.stdout.splitlines():
            if row := ROW.fullmatch(line):
                found[row[10]] = (int(row[2]), float(row[3]) * UNITS[row[4]], float(row[5]) * UNITS[row[6]], float(row[7]))
        return found

    def start_of(self, ranks, layout):
        """A run's start event, and its last step with the whole run's tensor bytes."""
        (self.folder / "text").write_text("In the beginning God created the heaven and the earth.\n" * 300)
        run(*launched(ranks, *TINY, *layout.split(), "--data", "text", "--steps", "4", "--run-dir", "run", "--overwrite",
                      "--checkpoint-every", "0"), cwd=self.folder)
        lines = [json.loads(line) for line in (self.folder / "run/metrics.jsonl").read_text().splitlines()]
        (start,) = [line for line in lines if line.get("event") == "start"]
        (end,) = [line for line in lines if line.get("event") == "end"]
        return start, {**[line for line in lines if "event" not in line][-1], "memory_bytes": end["memory_bytes"]}

    def test_predicted_memory_and_bytes_match_runs(self):
        rows = self.rows(self.plan(*TINY, "--ranks", "2", "--show", "99"))
        self.assertEqual({layout.split()[1] for layout in rows}, {"ddp", "zero", "fsdp", "tp", "pp"})
        for layout, (ranks, memory, sent, _) in rows.items():
            with self.subTest(layout):
                start, last = self.start_of(ranks, layout)
                self.assertAlmostEqual(memory / last["memory_bytes"], 1, delta=0.05)
                if "ddp" in layout:  # float32 gradients, once, in a ring of two
                    self.assertEqual(round(sent / 4096), round(4 * start["parameters"] / 4096))
                if "pp" in layout:  # a message per microbatch, and all-reduces of matrices that stages share
                    self.assertAlmostEqual(sent / last["comm_bytes"], 1, delta=0.05)

    def test_the_best_fits_and_its_command_line_runs(self):
        result = self.plan(*TINY, "--ranks", "2", "--dropout", "0")
        best = result.stdout.splitlines()[-1]
        self.assertRegex(best, r"^best: dtrun -n 2 -- dtrain --data FILE .*--dropout 0(\.0)? .*--global-batch 8 --threads 1$")
        (self.folder / "text").write_text("In the beginning God created the heaven and the earth.\n" * 300)
        words = best.replace("FILE", "text").split()
        words = words[words.index("--data"):]
        run(*launched(2, *words, "--steps", "2", "--run-dir", "run"), cwd=self.folder)
        self.assertNotIn("--strategy single", result.stdout)

    def test_ranks_share_the_cores_if_their_number_is_open(self):
        ranks = {row[0] for row in self.rows(self.plan(*TINY[:-2], "--show", "999")).values()}
        self.assertIn(1, ranks)

    def test_a_size_with_g_alone_is_of_1024_and_with_gb_of_1000(self):
        for text, shown in (("4G", "4.0 GiB/s"), ("4GB/s", "3.7 GiB/s")):
            result = self.plan(*TINY, "--ranks", "4", "--ranks-per-node", "2", "--device-memory", "1.5g", "--device-tflops", "1", "--link", text)
            self.assertRegex(result.stdout, f" {shown} .*between nodes")

    def test_a_remote_cluster(self):
        result = self.plan(*LARGE, "--ranks", "4096", "--ranks-per-node", "8", "--device-memory", "80GiB", "--link", "50GB")
        rows = self.rows(result)
        self.assertEqual(len(rows), 8)
        self.assertLess(max(memory for _, memory, _, _ in rows.values()), 80 << 30)
        for layout in rows:  # tensor parallelism stays within a machine
            self.assertLessEqual(int(re.search(r"--tp (\d+)", layout)[1]), 8)
        assert_names(result.stdout, "400 TFLOP/s")
        self.assertRegex(result.stdout, r"  - 4096 ranks, --strategy ddp .*: .*[\d.]+ GiB .* 80.0 GiB")
        self.assertRegex(result.stdout.splitlines()[-1], r"^best: dtrun --nnodes 512 --node-rank R --master-addr HOST -n 8 -- ")

    def test_a_slower_link_prefers_less_traffic(self):
        flags = ("--layers", "8", "--width", "512", "--heads", "8", "--neurons", "4096", "--seq-len", "512", "--ranks", "4",
                 "--ranks-per-node", "1", "--device-memory", "80GiB", "--device-tflops", "100", "--global-batch", "16",
                 "--microbatch", "4", "--tie-layers", "off")
        sent = [next(iter(self.rows(self.plan(*flags, "--link", link)).values()))[2] for link in ("100GB", "10MB")]
        self.assertLess(sent[1], sent[0])

    def test_free_communication_prefers_replicas_and_the_microbatch_of_a_run(self):
        """All layouts without a pipeline are then equally fast, up to rounding."""
        flags = (*TINY[:10], "--global-batch", "128", "--ranks", "8", "--device-tflops", "200", "--show", "99")
        result = self.plan(*flags, "--device-memory", "80GB")
        layouts = list(self.rows(result))
        self.assertEqual(layouts[:4], [f"--strategy {name} --microbatch 8" for name in ("ddp", "zero --zero-stage 1", "zero --zero-stage 2", "fsdp")])
        ddp, fsdp = (self.rows(result)[layouts[i]][1] for i in (0, 3))
        # If replicas do not fit, the first sharded layout.
        result = self.plan(*flags, "--microbatch", "8", "--device-memory", str(int((ddp + fsdp) / 2)))
        self.assertTrue(next(iter(self.rows(result))).startswith("--strategy zero"), result.stdout)

    def test_another_machine_needs_a_complete_description(self):
        for flags in (("--device-tflops", "200", "--ranks", "8"), ("--device-tflops", "200", "--device-memory", "80GB")):
            error = self.plan(*TINY, *flags, status=USAGE).stderr
            assert_names(error, "--device-tflops 200", "--ranks", "--device-memory")
            self.assertEqual(len(error.splitlines()), 1)
        assert_names(self.plan(*TINY, "--device-tflops", "1e300", status=USAGE).stderr, "--device-tflops")

    def test_the_length_of_the_run_and_of_a_pass(self):
        there = ("--ranks", "2", "--device-memory", "80GiB", "--device-tflops", "1e-6", "--show", "1")
        (self.folder / "text").write_text("In the beginning God created the heaven and the earth.\n" * 300)
        seconds = {}
        for flags in (("--steps", "10"), ("--epochs", "2", "--data", "text")):
            result = self.plan(*TINY, *there, *flags)
            line = result.stdout.splitlines()[-2]
            self.assertTrue(line.startswith("time: "), line)
            seconds[flags[1]] = re.findall(r"(\d[\d,]*) steps? of 256 tokens", line)
        self.assertIn(" --checkpoint-every 100 ", result.stdout.splitlines()[-1])  # the checkpoint copy is counted
        samples = 300 * 55 // 32
        self.assertEqual(seconds, {"10": ["10"], "2": [str(-(-2 * samples // 8))]})
        self.assertFalse(any(line.startswith("time: ") for line in self.plan(*TINY, *there, "--epochs", "2").stdout.splitlines()))
        # Data on another machine is accepted; local files that are not data are rejected.
        result = self.plan(*TINY, *there, "--steps", "10", "--data", "/there/book.dtok")
        self.assertEqual(len(lines_naming(result.stderr, "/there/book.dtok", "--vocab 256")), 1, result.stderr)
        error = self.plan(*TINY, *there, "--data", "text:1,/there/book.dtok:1").stderr
        self.assertEqual(len(lines_naming(error, "'/there/book.dtok'")), 1, error)
        time, best = result.stdout.splitlines()[-2:]
        assert_names(time, "10 steps")
        self.assertNotIn(";", time)
        assert_names(best, "--data /there/book.dtok")
        self.plan(*TINY, *there, "--data", ".", status=DATA)

    def test_more_machines_are_suggested_if_this_one_is_too_small(self):
        """The state of the single layer, 16 bytes per parameter, needs twice the memory."""
        memory = 1024 * int(re.search(r"MemTotal: +(\d+)", Path("/proc/meminfo").read_text())[1])
        neurons = 256 * (2 * memory // (16 * 3 * 4 * 1024) // 256)
        error = self.plan("--layers", "1", "--width", "1024", "--heads", "4", "--neurons", str(neurons), "--seq-len", "16", "--ranks", "2",
                          status=USAGE).stderr
        self.assertRegex(error, r"on \d+ ranks \([\d.]+ GiB per rank; [^)]*\d+ machines")

    def test_show_limits_rejected_layouts_too(self):
        result = self.plan(*LARGE, "--ranks", "4096", "--ranks-per-node", "8", "--device-memory", "16GiB", "--show", "2")
        self.assertEqual(sum(line.startswith("  - ") for line in result.stdout.splitlines()), 2)

    def test_a_limit_below_the_whole_model_leaves_sharded_layouts(self):
        flags = ("--layers", "6", "--tie-layers", "off", "--width", "64", "--heads", "2", "--neurons", "1024", "--seq-len", "16",
                 "--microbatch", "1", "--global-batch", "2", "--threads", "1", "--show", "99")
        (single,) = self.rows(self.plan(*flags, "--ranks", "1")).values()
        open_rows = self.rows(self.plan(*flags, "--ranks", "2"))
        fsdp = "--strategy fsdp --microbatch 1"
        limit = (single[1] + open_rows[fsdp][1]) // 2
        rows = self.rows(self.plan(*flags, "--ranks", "2", "--memory-limit", int(limit)))
        self.assertEqual(set(rows), {layout for layout, row in open_rows.items() if row[1] <= limit})
        self.assertIn(fsdp, rows)

    def test_a_plan_for_gpus_is_that_of_their_kernels(self):
        flags = (*TINY, "--ranks", "2", "--device-memory", "80GiB", "--device-tflops", "100", "--seq-len", "512", "--show", "99")
        gpus, cuda, cpus = (self.plan(*flags, "--device", device) for device in ("auto", "cuda", "cpu"))
        self.assertEqual(self.rows(cuda), self.rows(gpus))
        self.assertIn("on cuda", gpus.stdout.splitlines()[0])
        # Fused kernels, which GPUs lack, save less for the backward pass.
        layout = "--strategy ddp --microbatch 2"
        self.assertGreater(self.rows(gpus)[layout][1], 1.2 * self.rows(cpus)[layout][1])
        self.assertNotIn("--threads", gpus.stdout.splitlines()[-1])
        error = self.plan(*TINY, "--device", "cuda", status=USAGE).stderr
        assert_names(error, "--device", "cuda", "--device-tflops")
        self.assertEqual(len(error.splitlines()), 1)

    def test_an_open_global_batch_is_one_that_all_ranks_share(self):
        there = ("--ranks", "12", "--device-memory", "80GiB", "--device-tflops", "100", "--show", "99")
        for flags, batch in ((TINY[:10], 12), ((*TINY[:10], "--microbatch", "16"), 192),
                             ((*TINY[:10], "--microbatch", "4", "--grad-accum", "8"), 384)):
            result = self.plan(*flags, *there)
            self.assertIn("--strategy ddp", "".join(self.rows(result)))
            self.assertIn(f" --global-batch {batch}", result.stdout.splitlines()[-1])

    def test_the_best_command_is_quoted_for_a_shell(self):
        best = self.plan(*TINY, "--ranks", "2", "--device-memory", "80GiB", "--device-tflops", "100", "--sample-prompt", "Once upon",
                         "--sample-every", "5", "--epochs", "2").stdout.splitlines()[-1]
        words = shlex.split(best)
        self.assertEqual(words[words.index("--sample-prompt") + 1], "Once upon")
        self.assertEqual(words[words.index("--epochs") + 1], "2")
        (self.folder / "config.json").write_text(json.dumps({"train": {"steps": 5, "epochs": 2}}))
        best = self.plan("--config", "config.json", *TINY, "--ranks", "2", "--device-memory", "80GiB", "--device-tflops",
                         "100").stdout.splitlines()[-1]
        self.assertNotIn("--steps", best)

    def test_a_model_that_fits_nowhere_is_rejected_with_a_reason(self):
        large = overriding(LARGE, "--global-batch", "64")  # one rank has a microbatch per sequence
        error = self.plan(*large, "--ranks", "1", "--device-memory", "1GiB", status=USAGE).stderr
        self.assertRegex(error, r"plan: .*: --strategy single .*: .*[\d.]+ GiB .* 1.0 GiB; .*\n$")
        error = self.plan("--ranks", "0.5", status=USAGE).stderr
        self.assertIn("--ranks", error)
        error = self.plan("--heads", "3", "--neurons", "7", "--ranks", "2", status=USAGE).stderr
        self.assertEqual(len(error.splitlines()), 1)

    def test_the_smallest_layout_is_named_with_settings_that_fit(self):
        flags = (*TINY[:10], "--ranks", "4", "--device", "cpu", "--device-tflops", "0.05", "--microbatch", "8", "--global-batch", "32")
        rows = self.rows(self.plan(*flags, "--device-memory", "80GiB", "--show", "99"))
        least = min(memory for _, memory, _, _ in rows.values())
        limited = (*flags, "--device-memory", str(int(0.9 * least)))
        error = self.plan(*limited, status=USAGE).stderr
        (named,) = [layout for layout in rows if f"{layout}:" in error]
        self.assertEqual(rows[named][1], least)
        self.plan(*limited, *re.search(r"--recompute \w+", error)[0].split())


MODEL = ("--layers", "2", "--width", "32", "--heads", "2", "--neurons", "64", "--seq-len", "32", "--threads", "1")
AUTO = ("--strategy", "auto")
CHOICE = re.compile(r"--strategy auto [a-z ]*(--strategy .*?): predicted [\d.]+ m?s ")
KEPT = re.compile(r"--strategy auto [a-z ]* run\b")


class AutoStrategy(FolderTest):
    def setUp(self):
        super().setUp()
        (self.folder / "text").write_text("In the beginning God created the heaven and the earth.\n" * 300)

    def train(self, ranks, *flags, status=0):
        """Output of a run, joined to one line."""
        command = launched(ranks, *MODEL, "--data", "text", *AUTO, *flags)
        result = run(*command, cwd=self.folder, status=status)
        return re.sub(r"\s*\n\s*", " ", result.stderr + result.stdout)

    def configuration(self, name="run"):
        return json.loads((self.folder / name / "config.json").read_text())

    def test_ranks_use_the_chosen_layout_and_report_predictions(self):
        text = self.train(2, "--steps", "12", "--run-dir", "run")
        chosen = CHOICE.search(text)
        self.assertTrue(chosen, text)
        self.assertRegex(text, r"; next best: --strategy .* \(of \d+ layouts\), [\d.]+ m?s per step; ")
        saved = self.configuration()
        flags = dict(zip(chosen[1].split()[::2], chosen[1].split()[1::2]))
        self.assertEqual(saved["layout"]["strategy"], flags["--strategy"])
        self.assertEqual(saved["resolved"]["layout"]["strategy"], flags["--strategy"])
        self.assertEqual(saved["batch"]["microbatch"], int(flags["--microbatch"]))
        self.assertEqual(saved["batch"]["global"], 8)
        end = metrics_of(self.folder / "run")[-1]
        self.assertEqual(end["event"], "end")
        self.assertGreater(end["predicted_step_seconds"], 0)
        self.assertAlmostEqual(end["memory_bytes"] / end["predicted_memory_bytes"], 1, delta=0.1)
        steps = sorted(line["step_seconds"] for line in metrics_of(self.folder / "run") if "loss" in line and "event" not in line)
        self.assertEqual(end["step_seconds"], steps[len(steps) // 2])
        self.assertRegex(text, r"step +[\d.]+ m?s median of \d+ steps, [\d.]+ m?s predicted \(\d+%\)")
        self.assertRegex(text, r"memory +[\d.]+ \w+ measured, [\d.]+ \w+ predicted \(\d+%\)")

    def test_the_result_equals_that_of_the_explicit_layout(self):
        text = self.train(2, "--steps", "3", "--run-dir", "run", "--global-batch", "12", "--microbatch", "2")
        flags = CHOICE.search(text)[1].split()
        self.assertEqual(flags[-2:], ["--microbatch", "2"])
        run(*launched(2, *MODEL, "--data", "text", *flags, "--steps", "3", "--run-dir", "named", "--global-batch", "12"), cwd=self.folder)
        models = [(self.folder / name / "final/model.safetensors").read_bytes() for name in ("run", "named")]
        self.assertEqual(models[0], models[1])

    def test_one_rank(self):
        text = self.train(1, "--steps", "2", "--run-dir", "run")
        self.assertTrue(CHOICE.search(text)[1].startswith("--strategy single --microbatch "), text)

    def test_a_resumed_run_keeps_its_layout(self):
        # The planner would not choose this one.
        run(*launched(2, *MODEL, "--data", "text", "--strategy", "zero", "--zero-stage", "3", "--global-batch", "8", "--steps", "2",
                      "--run-dir", "run"), cwd=self.folder)
        text = self.train(2, "--steps", "4", "--run-dir", "run", "--resume", "auto")
        self.assertRegex(text, KEPT)
        self.assertIsNone(CHOICE.search(text))
        self.assertEqual(self.configuration()["resolved"]["layout"]["zero_stage"], 3)
        # Without --data, the run's own settings apply, which name the layout.
        result = run(*launched(2, "--run-dir", "run", "--resume", "auto", "--steps", "5"), cwd=self.folder)
        self.assertIsNone(CHOICE.search(result.stderr + result.stdout))
        self.assertEqual(metrics_of(self.folder / "run")[-1]["step"], 5)
        # Other ranks have another layout.
        text = self.train(1, "--steps", "6", "--run-dir", "run", "--resume", "auto")
        self.assertIn("--strategy single", CHOICE.search(text)[1])

    def test_a_resumed_run_keeps_its_microbatch_unless_another_is_given(self):
        run(*launched(2, *MODEL, "--data", "text", "--strategy", "ddp", "--global-batch", "8", "--grad-accum", "2", "--steps", "2",
                      "--run-dir", "run"), cwd=self.folder)
        for steps, flags, microbatch in (("3", (), 2), ("4", ("--microbatch", "4"), 4)):
            text = self.train(2, "--global-batch", "8", "--steps", steps, "--run-dir", "run", "--resume", "auto", *flags)
            self.assertRegex(text, KEPT)
            self.assertEqual(self.configuration()["resolved"]["batch"]["microbatch"], microbatch)

    def test_a_restarted_job_keeps_its_layout(self):
        script = ('if [ $RANK = 1 ] && mkdir died 2>&-; then "$@" & until [ -e run/checkpoints/step-50 ]; do sleep 0.05; done; '
                  'kill -9 $!; wait $!; exit 9; fi; exec "$@"')
        result = run(DTRUN, "-n", "2", "--max-restarts", "1", "--", "sh", "-c", script, "sh", DTRAIN, *MODEL, "--data", "text", *AUTO,
                     "--steps", "400", "--checkpoint-every", "50", "--keep-every", "50", "--run-dir", "run", cwd=self.folder,
                     timeout=600)
        text = re.sub(r"\s*\n\s*", " ", result.stderr + result.stdout)
        self.assertEqual(len(CHOICE.findall(text)), 1, text)
        self.assertRegex(text, KEPT)
        self.assertEqual(metrics_of(self.folder / "run")[-1]["step"], 400)

    def test_conflicting_settings_are_rejected(self):
        for flags, names in ((("--tp", "2"), ("--tp 2",)), (("--zero-stage", "3"), ("--zero-stage 3",)), (("--grad-accum", "2"), ("--grad-accum 2",)),
                             (("--memory-limit", "1KiB"), ("--strategy single",))):
            with self.subTest(flags):
                assert_names(self.train(1, "--steps", "2", "--run-dir", "no", *flags, status=USAGE), "--strategy auto", *names)
                self.assertFalse((self.folder / "no").exists())
        result = run(DTRAIN, "doctor", *AUTO, cwd=self.folder, status=USAGE)
        assert_names(result.stderr, "--strategy auto")

    def test_ranks_with_different_settings_are_rejected(self):
        script = 'exec "$@" --strategy $([ $RANK = 0 ] && echo auto || echo ddp)'
        command = launched(2, *MODEL, "--data", "text", "--steps", "2", "--run-dir", "run")
        at = command.index("--") + 1
        result = run(*command[:at], "sh", "-c", script, "sh", *command[at:], cwd=self.folder, status=USAGE)
        self.assertIn("layout.strategy", result.stderr)


if __name__ == "__main__":
    unittest.main()
