"""--strategy auto: the ranks choose their layout, say what they expect of it, and keep it when they go on."""

import json
import re
import unittest

from dtrain_harness import DTRAIN, DTRUN, USAGE, FolderTest, launched, metrics_of, run
from messages import assert_names

TINY = ("--levels", "2", "--width", "32", "--heads", "2", "--neurons", "64", "--seq-len", "32", "--threads", "1")
AUTO = ("--strategy", "auto")
CHOICE = re.compile(r"--strategy auto [a-z ]*(--strategy .*?): [\d.]+ m?s ")
KEPT = re.compile(r"--strategy auto [a-z ]* run\b")


class AutoStrategy(FolderTest):
    def setUp(self):
        super().setUp()
        (self.folder / "text").write_text("In the beginning God created the heaven and the earth.\n" * 300)

    def train(self, ranks, *flags, status=0):
        """The words of a run, with its lines one."""
        command = launched(ranks, *TINY, "--data", "text", *AUTO, *flags)
        result = run(*command, cwd=self.folder, status=status)
        return re.sub(r"\s*\n\s*", " ", result.stderr + result.stdout)

    def configuration(self, name="run"):
        return json.loads((self.folder / name / "config.json").read_text())

    def test_the_ranks_take_what_was_chosen_and_say_what_they_expect(self):
        text = self.train(2, "--steps", "12", "--run-dir", "run")
        chosen = CHOICE.search(text)
        self.assertTrue(chosen, text)
        self.assertRegex(text, r"; --strategy .* of \d+ .*[\d.]+ m?s; ")
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

    def test_the_result_is_that_of_the_layout_when_given(self):
        text = self.train(2, "--steps", "3", "--run-dir", "run", "--global-batch", "12", "--microbatch", "2")
        flags = CHOICE.search(text)[1].split()
        self.assertEqual(flags[-2:], ["--microbatch", "2"])
        run(*launched(2, *TINY, "--data", "text", *flags, "--steps", "3", "--run-dir", "named", "--global-batch", "12"), cwd=self.folder)
        models = [(self.folder / name / "final/model.safetensors").read_bytes() for name in ("run", "named")]
        self.assertEqual(models[0], models[1])

    def test_one_rank(self):
        text = self.train(1, "--steps", "2", "--run-dir", "run")
        self.assertTrue(CHOICE.search(text)[1].startswith("--strategy single --microbatch "), text)

    def test_a_run_that_goes_on_keeps_its_layout(self):
        self.train(2, "--steps", "2", "--run-dir", "run")
        first = self.configuration()
        # A plan would not find this one.
        first["layout"]["strategy"] = "zero"
        first["layout"]["zero_stage"] = 3
        (self.folder / "run/config.json").write_text(json.dumps(first))
        text = self.train(2, "--steps", "4", "--run-dir", "run", "--resume", "auto")
        self.assertRegex(text, KEPT)
        self.assertIsNone(CHOICE.search(text))
        self.assertEqual(self.configuration()["resolved"]["layout"]["zero_stage"], 3)
        # Without a word on data, the run's own settings hold, and they name the layout.
        result = run(*launched(2, "--run-dir", "run", "--resume", "auto", "--steps", "5"), cwd=self.folder)
        self.assertIsNone(CHOICE.search(result.stderr + result.stdout))
        self.assertEqual(metrics_of(self.folder / "run")[-1]["step"], 5)
        # Other ranks have another layout.
        text = self.train(1, "--steps", "6", "--run-dir", "run", "--resume", "auto")
        self.assertIn("--strategy single", CHOICE.search(text)[1])

    def test_a_run_that_goes_on_keeps_its_microbatch_unless_another_is_given(self):
        run(*launched(2, *TINY, "--data", "text", "--strategy", "ddp", "--global-batch", "8", "--grad-accum", "2", "--steps", "2",
                      "--run-dir", "run"), cwd=self.folder)
        for steps, flags, microbatch in (("3", (), 2), ("4", ("--microbatch", "4"), 4)):
            text = self.train(2, "--global-batch", "8", "--steps", steps, "--run-dir", "run", "--resume", "auto", *flags)
            self.assertRegex(text, KEPT)
            self.assertEqual(self.configuration()["resolved"]["batch"]["microbatch"], microbatch)

    def test_a_restarted_job_keeps_its_layout(self):
        script = ('if [ $RANK = 1 ] && mkdir died 2>&-; then "$@" & until [ -e run/checkpoints/step-100 ]; do sleep 0.05; done; '
                  'kill -9 $!; wait $!; exit 9; fi; exec "$@"')
        result = run(DTRUN, "-n", "2", "--max-restarts", "1", "--", "sh", "-c", script, "sh", DTRAIN, *TINY, "--data", "text", *AUTO,
                     "--steps", "800", "--checkpoint-every", "100", "--keep-every", "100", "--run-dir", "run", cwd=self.folder,
                     timeout=600)
        text = re.sub(r"\s*\n\s*", " ", result.stderr + result.stdout)
        self.assertEqual(len(CHOICE.findall(text)), 1, text)
        self.assertRegex(text, KEPT)
        self.assertEqual(metrics_of(self.folder / "run")[-1]["step"], 800)

    def test_what_does_not_go_with_it(self):
        for flags, names in ((("--tp", "2"), ("--tp 2",)), (("--zero-stage", "3"), ("--zero-stage 3",)), (("--grad-accum", "2"), ("--grad-accum 2",)),
                             (("--memory-limit", "1KiB"), ("--strategy single",))):
            with self.subTest(flags):
                assert_names(self.train(1, "--steps", "2", "--run-dir", "no", *flags, status=USAGE), "--strategy auto", *names)
                self.assertFalse((self.folder / "no").exists())
        result = run(DTRAIN, "doctor", *AUTO, cwd=self.folder, status=USAGE)
        assert_names(result.stderr, "--strategy auto")

    def test_ranks_that_do_not_agree(self):
        script = 'exec "$@" --strategy $([ $RANK = 0 ] && echo auto || echo ddp)'
        command = launched(2, *TINY, "--data", "text", "--steps", "2", "--run-dir", "run")
        at = command.index("--") + 1
        result = run(*command[:at], "sh", "-c", script, "sh", *command[at:], cwd=self.folder, status=USAGE)
        self.assertIn("layout.strategy", result.stderr)


if __name__ == "__main__":
    unittest.main()
