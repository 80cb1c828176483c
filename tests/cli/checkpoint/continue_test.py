"""config.json of a run: its content, its use by other commands and layouts, and resuming with the run's own settings."""

import datetime
import json
import os
import unittest

from dtrain_harness import CONSTANT_RATE, DTRAIN, DTRUN, USAGE, launched, make_folder, metrics_of, run
from messages import assert_names, lines_naming
TINY = [*CONSTANT_RATE, "--layers", "2", "--width", "32", "--heads", "2", "--neurons", "64", "--seq-len", "32", "--global-batch", "4",
        "--microbatch", "1", "--lr", "2e-3", "--threads", "1", "--checkpoint-every", "3"]


class Continue(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = make_folder(cls)
        (cls.root / "home").mkdir()
        (cls.root / "elsewhere").mkdir()
        (cls.root / "home/text.txt").write_text("In the beginning God created the heaven and the earth.\n" * 60)
        cls.whole = cls.root / "whole"
        cls.command(*TINY, "--data", "text.txt", "--steps", 12, "--run-dir", cls.whole)

    @classmethod
    def command(cls, *arguments, ranks=1, cwd="home", status=0):
        return run(*launched(ranks, *arguments), cwd=cls.root / cwd, status=status)

    def config(self, run):
        return json.loads((run / "config.json").read_text())

    def run_with(self, config, name):
        """A run folder that holds this configuration and nothing else."""
        run = self.root / name
        run.mkdir()
        (run / "config.json").write_text(json.dumps(config))
        return run

    def rates(self, *commands):
        """The resolved peak and final learning rates of each command."""
        resolved = [json.loads(self.command(*each, "--print-config").stdout)["train"] for each in commands]
        return [(train["lr"], train["min_lr"]) for train in resolved]

    def losses(self, run):
        return [(line["loss"], line["grad_norm"]) for line in metrics_of(run) if "loss" in line]

    def test_it_holds_the_given_and_the_resolved_settings(self):
        saved = self.config(self.whole)
        self.assertEqual(saved["layout"]["dp"], 0)
        self.assertEqual(saved["machine"]["backend"], "auto")
        self.assertEqual(saved["batch"], {"global": 4, "microbatch": 1, "grad_accum": 0})
        self.assertEqual(saved["data"]["train"], str(self.root / "home/text.txt"))
        resolved = saved["resolved"]
        self.assertEqual(resolved["layout"]["dp"], 1)
        self.assertEqual(resolved["machine"]["backend"], "none")
        self.assertEqual(resolved["batch"], {"global": 4, "microbatch": 1, "grad_accum": 4})

    def test_provenance_is_saved_and_leads_the_metrics(self):
        saved = self.config(self.whole)["provenance"]
        self.assertEqual(list(saved), ["version", "commit", "command_line", "directory", "host", "cpu", "started",
                                       "ranks"])
        self.assertEqual(saved["command_line"][0], str(DTRAIN))
        self.assertEqual(saved["command_line"][-2:], ["--run-dir", str(self.whole)])
        self.assertEqual(saved["directory"], str(self.root / "home"))
        self.assertEqual((saved["host"], saved["ranks"]), (os.uname().nodename, 1))
        age = datetime.datetime.now(datetime.timezone.utc) - datetime.datetime.fromisoformat(saved["started"])
        self.assertLess(abs(age.total_seconds()), 300)
        self.assertEqual(metrics_of(self.whole)[0]["provenance"], saved)
        version = self.command("--version").stdout
        self.assertEqual(version, f"dtrain {saved['version']} (commit {saved['commit']})\n")

    def test_it_is_a_configuration_for_another_layout_another_folder_and_generate(self):
        file = self.whole / "config.json"
        other = self.root / "other"
        self.command("--config", file, "--strategy", "fsdp", "--run-dir", other, "--steps", 3, ranks=2, cwd="elsewhere")
        self.assertEqual(self.losses(other), self.losses(self.whole)[:3])
        self.assertEqual(self.config(other)["provenance"]["ranks"], 2)
        sharded = other / "config.json"
        result = self.command("generate", "--config", sharded, "--from", other / "final/model.safetensors",
                              "--max-tokens", 5, cwd="elsewhere")
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)  # the memory
        self.assertTrue(result.stdout)

    def test_resume_auto_alone_uses_the_settings_of_the_run_on_any_number_of_ranks(self):
        run = self.root / "parts"
        self.command(*TINY, "--data", "text.txt", "--steps", 3, "--run-dir", run)
        result = self.command("--run-dir", run, "--resume", "auto", "--steps", 6, ranks=2, cwd="elsewhere")
        assert_names(result.stderr, f"{run}/config.json", "--strategy ddp", "single", "2 ranks")
        self.assertRegex(result.stdout, r"\n\[0\] done: step 6, 3 steps .* tok/s\)\n")
        self.command("--run-dir", run, "--resume", "auto", "--steps", 9, "--strategy", "zero", ranks=4)
        self.assertEqual(self.config(run)["layout"]["strategy"], "zero")
        self.command("--run-dir", run, "--resume", "auto", "--steps", 12, cwd="elsewhere")
        self.assertEqual(self.losses(run), self.losses(self.whole))
        result = self.command("--run-dir", run, "--resume", "auto", cwd="elsewhere")  # nothing is left to do
        self.assertEqual(self.losses(run), self.losses(self.whole))
        self.assertRegex(result.stdout, "(?m)^done: step 12, ")

    def test_a_command_that_names_its_data_takes_the_rest_from_the_run_too(self):
        run = self.root / "named"
        first = (*TINY, "--data", "text.txt", "--eval-every", 0, "--steps", 3, "--run-dir", run, "--resume", "auto")
        self.command(*first)
        result = self.command("--data", "text.txt", "--steps", 6, "--run-dir", run, "--resume", "auto")
        assert_names(result.stderr, f"{run}/config.json")
        self.assertNotIn("demo defaults", result.stderr)
        self.assertEqual(lines_naming(result.stderr, "train.lr is"), [])  # it is the run's, too
        self.assertEqual(self.config(run)["checkpoint"]["every"], "3")
        self.command(*first, "--steps", 12)  # the command of the first start
        self.assertEqual(self.losses(run), self.losses(self.whole))
        result = self.command("--data", "text.txt", "--width", 64, "--run-dir", run, "--resume", "auto", status=USAGE)
        assert_names(result.stderr, "model.width", "64", "32")
        self.assertNotIn("model.layers", result.stderr)

    def test_an_automatic_final_rate_follows_another_learning_rate(self):
        run = self.root / "automatic"
        self.command(*TINY, "--data", "text.txt", "--schedule", "linear", "--steps", 3, "--run-dir", run)
        started = self.config(run)
        self.command("--run-dir", run, "--resume", "auto", "--steps", 6)
        for saved in (started, self.config(run)):
            self.assertEqual(saved["train"]["min_lr"], "auto")
            self.assertEqual([saved["resolved"]["train"][key] for key in ("lr", "min_lr")], [2e-3, 2e-4])
        (fork,) = self.rates(("--resume", run, "--lr", "1e-4"))
        self.assertEqual(fork, (1e-4, 1e-5))
        self.command("--run-dir", run, "--resume", "auto", "--steps", 9, "--lr", "1e-4")
        self.assertEqual(self.config(run)["train"]["min_lr"], "auto")
        auto = ("--run-dir", run, "--resume", "auto")
        self.assertEqual(self.rates(auto, (*auto, "--lr", "1e-3")), [(1e-4, 1e-5), (1e-3, 1e-4)])
        started["resolved"]["train"]["min_lr"] = 3e-4  # as an older dtrain derived it
        older = ("--run-dir", self.run_with(started, "older-rates"), "--resume", "auto")
        self.assertEqual(self.rates(older, (*older, "--lr", "1e-3")), [(2e-3, 3e-4), (1e-3, 1e-4)])

    def test_a_run_without_a_checkpoint_is_started_by_a_command_that_names_its_data(self):
        run = self.run_with(self.config(self.whole), "uncommitted")
        result = self.command("--data", "text.txt", "--run-dir", run, "--resume", "auto", "--print-config")
        self.assertEqual(json.loads(result.stdout)["model"]["width"], 64)

    def test_ranks_that_do_not_fit_are_rejected_with_what_must_divide_what(self):
        result = self.command("--run-dir", self.whole, "--resume", "auto", ranks=3, status=USAGE)
        assert_names(result.stderr, "--global-batch 4", "3", f"{self.whole}/config.json")
        result = self.command("--run-dir", self.whole, "--resume", "auto", "--microbatch", 3, ranks=3, status=USAGE)
        self.assertIn("--microbatch 3", result.stderr)

    def test_an_impossible_pipeline_or_mesh_of_the_run_is_dropped(self):
        saved = self.config(self.whole)
        saved["layout"]["strategy"] = saved["resolved"]["layout"]["strategy"] = "pp"
        saved["resolved"]["layout"]["pp"] = saved["provenance"]["ranks"] = 2
        run = self.run_with(saved, "pipeline")
        for ranks, strategy in ((1, "pp"), (2, "pp"), (4, "ddp")):
            result = self.command("--run-dir", run, "--resume", "auto", "--print-config", ranks=ranks)
            self.assertEqual(json.loads(result.stdout)["layout"]["strategy"], strategy)
        assert_names(result.stderr, "--strategy ddp", "pp", "4 ranks")
        result = self.command("--run-dir", run, "--resume", "auto", ranks=3, status=USAGE)
        assert_names(result.stderr, "--global-batch 4", "3")
        saved["layout"].update(strategy="3d", tp=2, dp=1)
        saved["resolved"]["layout"].update(strategy="3d", pp=1, tp=2, dp=1)
        result = self.command("--run-dir", self.run_with(saved, "mesh"), "--resume", "auto", "--print-config")
        assert_names(result.stderr, "--strategy ddp", "3d", "1 rank")

    def test_a_run_keeps_plain_kernels_even_if_auto_would_choose_fused_ones_now(self):
        saved = self.config(self.whole)
        self.assertEqual((saved["machine"]["kernels"], saved["resolved"]["machine"]["kernels"]), ("auto", "fused"))
        saved["resolved"]["machine"]["kernels"] = "plain"
        run = self.run_with(saved, "plain")
        for flags, kernels in (((), "plain"), (("--kernels", "fused"), "fused"), (("--kernels", "auto"), "fused")):
            result = self.command("--run-dir", run, "--resume", "auto", *flags, "--print-config")
            self.assertEqual(json.loads(result.stdout)["machine"]["kernels"], kernels)

    def test_moved_data_is_reported_as_a_setting_of_the_run(self):
        saved = self.config(self.whole)
        saved["data"]["train"] = saved["resolved"]["data"]["train"] = "/nix/text.txt"
        run = self.run_with(saved, "moved")
        result = self.command("--run-dir", run, "--resume", "auto", status=3)
        assert_names(result.stderr, "/nix/text.txt", f"--config {run}/config.json --data FILE")
        self.command("--run-dir", run, "--resume", "auto", "--config", run / "config.json", "--data", "text.txt",
                     "--print-config")

    def test_a_backend_unsuitable_for_the_new_ranks_is_dropped(self):
        run = self.root / "backend"
        self.command(*TINY, "--data", "text.txt", "--steps", 3, "--run-dir", run, "--strategy", "ddp", "--backend", "gloo",
                     ranks=2)
        self.command("--run-dir", run, "--resume", "auto", "--backend", "gloo", "--strategy", "single", status=USAGE)
        result = self.command("--run-dir", run, "--resume", "auto", "--steps", 4, "--strategy", "single")
        assert_names(result.stderr, f"{run}/config.json", "--backend auto", "gloo")
        self.assertEqual(self.losses(run), self.losses(self.whole)[:4])

    def test_the_network_interface_is_not_kept_for_another_machine(self):
        saved = self.config(self.whole)
        saved["machine"]["interface"] = "eth99"
        run = self.run_with(saved, "interface")
        for flags, expected in (((), ""), (("--strategy", "ddp"), ""), (("--interface", "lo"), "lo")):
            result = self.command("--run-dir", run, "--resume", "auto", *flags, "--print-config", ranks=2)
            self.assertEqual(json.loads(result.stdout)["machine"]["interface"], expected)

    def test_a_folder_without_settings_is_reported(self):
        for run in (self.root / "nothing", self.root / "elsewhere"):
            result = self.command("--run-dir", run, "--resume", "auto", status=USAGE)
            self.assertEqual(result.stderr.count("\n"), 1)
            assert_names(result.stderr, "--resume auto", run, "config.json")


class OneResult(unittest.TestCase):
    """A command that prints one JSON object prints it alone, whatever the number of ranks."""

    def test_the_resolved_configuration_is_plain_json_under_dtrun(self):
        for _ in range(3):  # the ranks end in any order
            result = run(DTRUN, "-n", "3", "--", DTRAIN, "--strategy", "ddp", "--microbatch", "2", "--print-config")
            self.assertEqual(result.stderr, "")
            config = json.loads(result.stdout)
            self.assertEqual((config["layout"]["dp"], config["batch"]["global"]), (3, 6))


if __name__ == "__main__":
    unittest.main()
