"""Habits of users of other trainers: underscores, --epochs, DeepSpeed files, tab completion, and --data without other flags."""

import json
import math
import os
import pty
import re
import select
import subprocess
import time
import unittest

from dtrain_harness import BUILD, DATA, DTRAIN, GOLDEN, USAGE, FolderTest, front_end_alone, launched, make_folder, metrics_of, run
from messages import assert_names, lines_naming

TEXT = GOLDEN / "text.bin"
PATH = f"{BUILD / 'bin'}:{os.environ['PATH']}"
SMALL = ["--layers", "1", "--width", "16", "--heads", "2", "--neurons", "16", "--seq-len", "16", "--threads", "1", "--log-every", "0"]


def resolved(*flags, ranks=1):
    return json.loads(run(*launched(ranks, *flags, "--print-config")).stdout)


class Flags(unittest.TestCase):
    def test_flags_may_be_written_with_underscores(self):
        ours = resolved("--grad-clip", "0.5", "--seq-len=64", "--tie-layers", "off")
        self.assertEqual(resolved("--grad_clip", "0.5", "--seq_len=64", "--tie_layers", "off"), ours)
        self.assertEqual(ours["data"]["seq_len"], 64)
        # Underscores in values and in unknown flags stay.
        self.assertEqual(resolved("--run_dir", "my_run")["run"]["dir"], "my_run")
        self.assertIn("unknown flag --no_such_flag", run(DTRAIN, "--no_such_flag", status=USAGE).stderr)


class Epochs(FolderTest):
    def test_steps_are_derived_from_data_and_batch(self):
        tokens = TEXT.stat().st_size
        held_out = resolved("--data", TEXT, "--val-fraction", "0.1", "--seq-len", "16")  # more is known from a run
        self.assertEqual(held_out["train"]["steps"], 800)
        samples = (tokens - 1) // 16
        for epochs, batch in ((1, 8), (2.5, 32), (0.01, 8)):
            found = resolved("--data", TEXT, "--seq-len", "16", "--global-batch", batch, "--epochs", epochs)["train"]
            self.assertEqual(found["steps"], math.ceil(math.ceil(epochs * samples) / batch))
        two = resolved("--data", TEXT, "--seq-len", "16", "--strategy", "ddp", "--microbatch", "8", "--epochs", "1", ranks=2)
        self.assertEqual(two["train"]["steps"], math.ceil(samples / 16))

    def test_warm_up_and_decay_are_derived_from_these_steps(self):
        found = resolved("--data", TEXT, "--seq-len", "16", "--epochs", "1", "--schedule", "wsd", "--warmup-steps", "1000000")["train"]
        self.assertEqual(found["warmup_steps"], found["steps"] // 2)
        self.assertEqual(found["decay_steps"], math.ceil(found["steps"] / 10))

    def test_a_run_trains_for_the_epochs_and_resumes_for_more(self):
        data = self.folder / "text"
        data.write_bytes(TEXT.read_bytes()[:16 * 40 + 1])
        run_dir = self.folder / "run"
        run(DTRAIN, *SMALL, "--data", data, "--global-batch", "8", "--epochs", "2", "--run-dir", run_dir)
        self.assertEqual(metrics_of(run_dir)[-1]["step"], 10)
        run(DTRAIN, "--run-dir", run_dir, "--resume", "auto", "--epochs", "3")
        self.assertEqual(metrics_of(run_dir)[-1]["step"], 15)
        # --steps replaces the epochs.
        run(DTRAIN, "--run-dir", run_dir, "--resume", "auto", "--steps", "16")
        self.assertEqual(metrics_of(run_dir)[-1]["step"], 16)

    def test_a_warm_up_is_compared_with_the_steps_of_the_epochs(self):
        for command in ([], ["doctor"]):
            for epochs, warmup, names in ((0.02, 20, ("--epochs 0.02",)), (100, 1000, ())):
                error = run(DTRAIN, *command, "--data", TEXT, "--seq-len", "16", "--epochs", epochs, "--warmup-steps", warmup,
                            "--print-config").stderr
                self.assertEqual(len(lines_naming(error, "warning", "--warmup-steps", *names)), len(names), error)
                self.assertNotIn("--steps 800", error)

    def test_invalid_epochs_are_rejected(self):
        assert_names(run(DTRAIN, "--data", TEXT, "--steps", "3", "--epochs", "1", status=USAGE).stderr, "--steps", "--epochs")
        self.assertIn("--epochs: found", run(DTRAIN, "--data", TEXT, "--epochs", "-1", status=USAGE).stderr)
        self.assertIn("lower it", run(DTRAIN, "--data", TEXT, "--epochs", "1e11", status=USAGE).stderr)
        run(DTRAIN, "--data", self.folder / "missing", "--epochs", "1", status=DATA)


class FormerNames(unittest.TestCase):
    def test_flags_and_keys_of_older_builds_keep_working(self):
        result = run(DTRAIN, "--levels", "3", "--tie-levels", "off", "--set", "model.levels=5", "--print-config")
        model = json.loads(result.stdout)["model"]
        self.assertEqual((model["layers"], model["tie_layers"]), (5, False))
        self.assertNotIn("levels", model)


class DeepSpeed(FolderTest):
    def file(self, content):
        path = self.folder / "ds.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def config(self, content, *flags, ranks=1):
        result = run(*launched(ranks, "--deepspeed_config", self.file(content), *flags, "--print-config"))
        return json.loads(result.stdout), result.stderr

    def test_a_whole_file_is_translated(self):
        found, error = self.config({
            "train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4, "gradient_clipping": 0.5,
            "steps_per_print": 5, "optimizer": {"type": "AdamW", "params": {"lr": 2e-4, "betas": [0.8, 0.95], "eps": 1e-7, "weight_decay": 0.01}},
            "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_max_lr": 2e-4, "warmup_num_steps": 1e2, "total_num_steps": 1000}},
            "bf16": {"enabled": True}, "fp16": {"enabled": False}, "communication_data_type": "fp32",
            "zero_optimization": {"stage": 3, "overlap_comm": True, "reduce_bucket_size": 5e8}, "wall_clock_breakdown": False,
            "no_such_key": 1}, ranks=2)
        self.assertEqual(found["batch"], {"global": 32, "microbatch": 4, "grad_accum": 4})
        train = found["train"]
        self.assertEqual([train[key] for key in ("lr", "beta1", "beta2", "eps", "weight_decay", "grad_clip", "optimizer", "schedule",
                                                 "warmup_steps", "steps")],
                         [2e-4, 0.8, 0.95, 1e-7, 0.01, 0.5, "adamw", "linear", 100, 1000])
        self.assertEqual((found["layout"]["strategy"], found["layout"]["zero_stage"]), ("zero", 3))
        self.assertEqual((found["machine"]["dtype"], found["machine"]["reduce_dtype"]), ("bfloat16", "float32"))
        self.assertEqual(found["report"]["log_every"], 5)
        (line,) = lines_naming(error, "no_such_key")
        named = line.rpartition(": ")[2].split(", ")
        self.assertEqual(sorted(named), ["no_such_key", "wall_clock_breakdown", "zero_optimization.overlap_comm",
                                         "zero_optimization.reduce_bucket_size"])

    def test_flags_override_the_file_and_auto_is_ignored(self):
        found, error = self.config({"train_micro_batch_size_per_gpu": "auto", "gradient_clipping": 0.5, "optimizer": {"type": "SGD", "params": {
            "lr": "auto", "momentum": 0.7}}, "zero_optimization": {"stage": 0, "offload_optimizer": None}, "scheduler": None, "fp16": {"enabled": True}}, "--grad-clip", "2")
        self.assertEqual(lines_naming(error, "offload_optimizer") + lines_naming(error, "scheduler"), [])
        self.assertEqual(found["train"]["grad_clip"], 2)
        self.assertEqual((found["train"]["optimizer"], found["train"]["momentum"], found["train"]["lr"]), ("sgd", 0.7, 3e-3))
        self.assertEqual((found["train"]["schedule"], found["train"]["warmup_steps"]), ("constant", 0))
        self.assertEqual((found["layout"]["strategy"], found["machine"]["dtype"]), ("ddp", "float16"))

    def test_what_an_optimizer_leaves_out_has_the_defaults_of_deepspeed(self):
        keys = ("beta2", "schedule", "warmup_steps", "min_lr")
        for content, expected in (
                ({"optimizer": {"type": "AdamW"}}, [0.999, "constant", 0, "auto"]),
                ({"optimizer": {"type": "AdamW", "params": {"betas": [0.9, 0.9]}}}, [0.9, "constant", 0, "auto"]),
                ({"optimizer": {"type": "Adam"}, "scheduler": {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 9}}},
                 [0.999, "cosine", 9, 0]),
                ({"optimizer": {"type": "SGD"}}, [0.95, "constant", 0, "auto"]),
                ({"optimizer": {"type": "Adam"}, "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 9}}},
                 [0.999, "constant", 9, "auto"]),
                ({"train_batch_size": 8}, [0.95, "wsd", 40, 3e-3 / 10])):
            found, _ = self.config(content)
            self.assertEqual([found["train"][key] for key in keys], expected, content)
        content = {"optimizer": {"type": "Adam"}, "scheduler": {"type": "WarmupDecayLR"}}
        found, _ = self.config(content, "--optimizer", "sgd", "--schedule", "constant")
        self.assertEqual([found["train"][key] for key in ("beta2", "min_lr")], [0.95, "auto"])

    def test_state_may_lie_on_a_disk(self):
        found, _ = self.config({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/tmp/x"}}}, ranks=2)
        self.assertEqual(found["machine"]["offload"], "disk:/tmp/x")

    def test_unsupported_values_are_rejected_by_key(self):
        for content, expected in (
                ({"optimizer": {"type": "Lamb"}}, 'optimizer.type: found "Lamb"'),
                ({"scheduler": {"type": "OneCycle"}}, 'scheduler.type: found "OneCycle"'),
                ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage: found 4"),
                ({"train_batch_size": 16, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 3},
                 "--grad-accum from "),
                ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, "bf16.enabled"),
                ({"gradient_clipping": "much"}, "gradient_clipping: found"),
                ({"optimizer": {"params": {"betas": [0.9]}}}, "optimizer.params.betas: found [0.9]"),
                ({"optimizer": {"params": {"betas": ["0.9", 0.95]}}}, 'optimizer.params.betas: found "0.9"'),
                ({"train_batch_size": "8"}, 'train_batch_size: found "8"'), ({"train_batch_size": None}, "train_batch_size: found null"),
                ({"zero_optimization": {"stage": "2"}}, 'zero_optimization.stage: found "2"'),
                ({"zero_optimization": {"stage": "auto"}}, 'zero_optimization.stage: found "auto"'),
                ({"zero_optimization": True}, "zero_optimization: found true"), ({"zero_optimization": "auto"}, "zero_optimization: found"),
                ({"optimizer": {"params": [1]}}, "optimizer.params: found [1]"),
                ({"optimizer": {"params": {"lr": 1}}, "optimizer.params.lr": 0.1}, '"optimizer.params.lr"'),
                ("{", "JSON"), ("[]", "array")):
            error = run(DTRAIN, "--deepspeed-config", self.file(content), "--print-config", status=USAGE).stderr
            self.assertIn("ds.json", error)
            self.assertIn(expected, error)
            self.assertEqual(len(error.splitlines()), 1, error)
        assert_names(run(DTRAIN, "--deepspeed-config", "", status=USAGE).stderr, "--deepspeed-config")
        self.assertIn("(--deepspeed-config)", run(DTRAIN, "--deepspeed-config", "missing.json", status=USAGE).stderr)

    def test_a_file_without_supported_keys_is_rejected(self):
        for content, key in (({"output_dir": "out", "learning_rate": 5e-5}, "output_dir"),
                             ({"zero_optimization": {"overlap_comm": True}}, "zero_optimization.overlap_comm"),
                             ({"deepspeed": {"train_batch_size": 8}}, "deepspeed.train_batch_size"),
                             ({"model": {"width": 96}}, "model.width"), ({"model_type": "gpt2", "n_layer": 12}, "model_type")):
            error = run(DTRAIN, "--deepspeed-config", self.file(content), "--print-config", status=USAGE).stderr
            assert_names(error, "ds.json", key, "--config")
            self.assertEqual(len(error.splitlines()), 1, error)
        _, error = self.config({"train_batch_size": "auto", "wall_clock_breakdown": False})
        self.assertEqual(len(lines_naming(error, "wall_clock_breakdown")), 1)

    def test_auto_replaces_the_layout_of_a_file(self):
        for content, expected in (({"gradient_accumulation_steps": 4}, "--grad-accum 4"), ({"zero_optimization": {"stage": 3}}, "--zero-stage 3")):
            found, error = self.config(content, "--strategy", "auto")
            self.assertEqual((found["layout"]["strategy"], found["batch"]["grad_accum"]), ("auto", 0))
            self.assertIn(f"--strategy auto replaces {expected}", error)
            self.assertEqual(len(error.splitlines()), 1, error)


class Alone(FolderTest):
    """--data without other flags, up to the point where LibTorch would be loaded."""

    def setUp(self):
        super().setUp()
        self.dtrain = front_end_alone(self.folder)

    def start(self, *flags):
        result = run(self.dtrain, *flags, cwd=self.folder, status=42)
        request = json.loads(result.stdout)
        return request["config"] if "config" in request else request, result.stderr

    def test_a_book_gets_all_demo_defaults_and_they_are_reported(self):
        (self.folder / "book.txt").write_bytes(b"words " * 50_000)
        config, error = self.start("--data", "book.txt")
        text = json.dumps(config)
        for expected in ('"val_fraction": 0.05', '"eval_every": 100', '"every": "100"', '"sample_every": 200'):
            self.assertIn(expected, text)
        self.assertIn("--val-fraction 0.05 --eval-every 100 --checkpoint-every 100 --sample-every 200", error)
        # The same command resumes the run.
        again, _ = self.start("--data", "book.txt", "--run-dir", "runs/book-1", "--resume", "auto", "--threads", "1")
        for group in ("data", "train", "report"):
            self.assertEqual(again[group], config[group])
        for flags in (["--steps", "5"], ["--keep-best"], ["--strategy", "ddp"], ["--lr", "1e-3"], ["--width", "32"], ["--seq-len", "64"],
                      ["--global-batch", "16"], ["--set", "train.seed=3"], ["--dtype", "float64"], ["--schedule", "cosine"], ["--log-every", "1"]):
            with self.subTest(flags=flags):
                config, error = self.start("--data", "book.txt", *flags)
                self.assertEqual(self.demo(config), (0.05, 100, "100", 200))
                self.assertEqual(len(lines_naming(error, "demo defaults")), 1)

    def demo(self, config):
        return config["data"]["val_fraction"], config["report"]["eval_every"], config["checkpoint"]["every"], config["report"]["sample_every"]

    def test_each_default_is_overridden_by_its_own_flag_only(self):
        (self.folder / "book.txt").write_bytes(b"words " * 50_000)
        (self.folder / "other.txt").write_bytes(b"words " * 500)
        for flags, expected in ((["--val-fraction", "0.1"], (0.1, 100, "100", 200)), (["--val-fraction", "0"], (0, 0, "100", 200)),
                                (["--val-data", "other.txt"], (0, 100, "100", 200)), (["--eval-every", "7"], (0.05, 7, "100", 200)),
                                (["--checkpoint-every", "10m"], (0.05, 100, "10m", 200)), (["--sample-every", "0"], (0.05, 100, "100", 0)),
                                (["--set", "checkpoint.every=none"], (0.05, 100, "none", 200)), (["--keep-last", "5"], (0.05, 100, "100", 200)),
                                (["--memory-limit", "1GiB"], (0.05, 100, "100", 0))):
            with self.subTest(flags=flags):
                self.assertEqual(self.demo(self.start("--data", "book.txt", *flags)[0]), expected)
        _, error = self.start("--data", "book.txt", "--val-fraction", "0", "--checkpoint-every", "5", "--sample-every", "0")
        self.assertNotIn("demo defaults", error)

    def test_a_configuration_gets_no_defaults_and_missing_flags_are_listed(self):
        (self.folder / "book.txt").write_bytes(b"words " * 50_000)
        for text, reported in (("{}", "--val-fraction 0.05 --eval-every 100 --checkpoint-every 100"), ('{"data.val_fraction": 0.1, "report.eval_every": 5}',
                           "add --checkpoint-every 100 "), ('{"data.val_fraction": 0.1, "checkpoint.every": "20"}', None),
                           ('{"checkpoint.every": "20"}', "add --val-fraction 0.05 --eval-every 100 "), ('{"data.val_fraction": 0, "checkpoint.every": "none"}', None)):
            (self.folder / "c.json").write_text(text)
            config, error = self.start("--data", "book.txt", "--config", "c.json")
            self.assertEqual(config["report"]["sample_every"], 0)
            self.assertEqual(bool(lines_naming(error, "demo defaults")), reported is not None)
            self.assertIn(reported or "", error)

    def test_a_resumed_run_keeps_its_validation_data(self):
        (self.folder / "book.txt").write_bytes(b"words " * 50_000)
        printed = run(self.dtrain, "--data", "book.txt", "--val-fraction", "0.125", "--print-config", cwd=self.folder).stdout
        for name, text in (("other", printed), ("none", printed.replace("0.125", "0.0"))):
            (self.folder / "runs" / name / "checkpoints").mkdir(parents=True)
            (self.folder / "runs" / name / "config.json").write_text(text)
        for name, share in (("other", 0.125), ("none", 0)):
            config, _ = self.start("--data", "book.txt", "--lr", "1e-4", "--run-dir", f"runs/{name}", "--resume", "auto")
            self.assertEqual(config["data"]["val_fraction"], share)
        printed = json.loads(run(self.dtrain, "--data", "book.txt", "--print-config", cwd=self.folder).stdout)
        self.assertEqual((printed["data"]["val_fraction"], printed["report"]["eval_every"]), (0.05, 100))

    def test_ranks_without_a_layout_get_ddp(self):
        (self.folder / "book.txt").write_bytes(b"words " * 100)
        ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}

        def layout(*flags):
            return json.loads(run(self.dtrain, "--data", "book.txt", "--print-config", *flags, cwd=self.folder, environment=ranks).stdout)["layout"]

        (self.folder / "single.json").write_text('{"layout": {"strategy": "single"}}')
        (self.folder / "fsdp.json").write_text('{"layout": {"strategy": "fsdp"}}')
        for flags in ([], ["--lr", "1e-3"], ["--dp", "2"], ["--config", "single.json"], ["--checkpoint-every", "5"]):
            self.assertEqual(layout(*flags)["strategy"], "ddp", flags)
            error = run(self.dtrain, "--data", "book.txt", *flags, cwd=self.folder, environment=ranks, status=42).stderr
            self.assertEqual(error.count("2 ranks without --strategy: using --strategy ddp"), 1, error)
        for flags, strategy in ((["--zero-stage", "3"], "zero"), (["--fsdp-sharding", "full"], "fsdp"),
                                (["--shard-size", "2"], "fsdp"), (["--config", "single.json", "--zero-stage", "1"], "zero")):
            self.assertEqual(layout(*flags)["strategy"], strategy, flags)
            error = run(self.dtrain, "--data", "book.txt", *flags, cwd=self.folder, environment=ranks, status=42).stderr
            self.assertEqual(len(lines_naming(error, *flags[-2:], f"--strategy {strategy}")), 1, error)
            self.assertNotIn("no effect", error)
        error = run(self.dtrain, "--data", "book.txt", "--zero-stage", "3", "--fsdp-sharding", "full", cwd=self.folder, environment=ranks,
                    status=USAGE).stderr
        assert_names(error, "--zero-stage 3", "--fsdp-sharding full", "--strategy")
        for flags, is_lone in ((["--strategy", "tp"], True), (["--strategy", "dp"], False), (["--strategy", "single"], False),
                               (["--strategy", "tp", "-q"], False)):
            error = run(self.dtrain, "--data", "book.txt", *flags, cwd=self.folder, status=42).stderr
            self.assertEqual(len(lines_naming(error, "dtrun -n 2", "--strategy tp")), is_lone, error)
        for flags in (["--strategy", "fsdp"], ["--config", "fsdp.json"], ["--set", "layout.strategy=fsdp"]):
            self.assertEqual(layout(*flags)["strategy"], "fsdp", flags)
        error = run(self.dtrain, "--data", "book.txt", "--strategy", "single", cwd=self.folder, environment=ranks, status=USAGE).stderr
        assert_names(error, "--strategy single", "2 ranks")
        for launcher in ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
                         {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_NODEID": "0",
                          "SLURM_NNODES": "1", "SLURM_JOB_NODELIST": "localhost", "SLURM_STEP_NODELIST": "localhost"}):
            found = run(self.dtrain, "--data", "book.txt", "--print-config", cwd=self.folder, environment=launcher)
            self.assertEqual(json.loads(found.stdout)["layout"]["strategy"], "ddp", launcher)

    def test_a_short_text_is_not_split_for_validation(self):
        (self.folder / "note.txt").write_bytes(b"words " * 100)
        config, error = self.start("--data", "note.txt", "--run-dir", "here")
        self.assertIn('"val_fraction": 0.0', json.dumps(config))
        self.assertNotIn("--val-fraction 0", error)
        assert_names(error, "validation", "--val-fraction", "--val-data")


class Completion(unittest.TestCase):
    def bash(self, *words):
        """What bash offers for the last word: calls the completion function as bash does."""
        function = "_dtrun_words" if words[0] == "dtrun" else "_dtrain_words"
        quoted = " ".join(f"'{word}'" for word in words)
        script = (f"source <('{DTRAIN}' completion bash); COMP_WORDS=({quoted}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); {function}; "
                  "printf '%s\\n' \"${COMPREPLY[@]}\"")
        result = run("bash", "-c", script, environment={"PATH": PATH})
        self.assertEqual(result.stderr, "")
        return result.stdout.split()

    def test_bash(self):
        for words, expected in ((["dtrain", "--val"], ["--val-data", "--val-fraction"]), (["dtrain", "veri"], ["verify"]),
                                (["dtrain", "generate", "--to"], ["--top-k", "--top-p"]), (["dtrain", "--optimizer", ""], ["adamw", "sgd"]),
                                (["dtrain", "--tie-layers", "of"], ["off"]), (["dtrain", "checkpoint", "ex"], ["export"]),
                                (["dtrain", "--dtype", ""], ["float32", "float64", "bfloat16", "float16"]),
                                (["dtrain", "--optimizer", "=", "s"], ["sgd"]), (["dtrain", "report", "--c"], ["--csv"]),
                                (["dtrun", "-n", "2", "--", "dtrain", "--spike-g"], ["--spike-guard"]),
                                (["dtrun", "--max-r"], ["--max-restarts"]), (["dtrain", "--data", str(TEXT)[:-2]], [str(TEXT)]),
                                (["dtrain", "data", "tok"], ["tokenizer"]), (["dtrain", "help", "min_"], []), (["dtrain", "help", "weight-d"], ["weight-decay"]),
                                (["dtrain", "help", "train.ep"], ["train.epochs", "train.eps"]), (["dtrain", "data", "tokenizer", ""], ["train"]),
                                (["dtrain", "data", "baseline", "--val-f"], ["--val-fraction"]),
                                (["dtrain", "data", "prepare", "x", "--dataset", ""], ["wikitext"]),
                                (["dtrain", "data", "tokenizer", "train", "--voc"], ["--vocab-size"])):
            self.assertEqual(self.bash(*words), expected, words)
        for words, expected in ((["--recompute", ""], ["none", "gates", "level", "every:", "auto"]), (["--compress", "to"], ["topk:"]),
                                (["--device", "au"], ["auto"]), (["--set", "train.lr"], ["train.lr="]), (["--resume", "aut"], ["auto"])):
            self.assertEqual(self.bash("dtrain", *words), expected, words)

    def test_bash_completes_paths_with_spaces(self):
        folder = make_folder(self)
        for name in ("my first text.txt", "my second text.txt"):
            (folder / name).write_text("text")
        function = f"cd '{folder}'; source <('{DTRAIN}' completion bash); COMP_WORDS=(dtrain --data my); COMP_CWORD=2; _dtrain_words"
        shown = run("bash", "-c", function + "; printf '%s\\n' \"${COMPREPLY[@]}\"", environment={"PATH": PATH}).stdout
        self.assertEqual(sorted(shown.splitlines()), ["my first text.txt", "my second text.txt"])

    def typed_in_zsh(self, typed, expected):
        """Types into zsh on a terminal until it shows the expected text."""
        master, terminal = pty.openpty()
        shell = subprocess.Popen(["zsh", "-f", "-i"], stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
                                 env={**os.environ, "PATH": PATH, "TERM": "dumb", "HOME": "/nonexistent"})
        os.close(terminal)
        shown, end = "", time.monotonic() + 20
        try:
            os.write(master, b"source <(dtrain completion zsh); echo re''ady\n")
            while expected not in shown and time.monotonic() < end:
                if select.select([master], [], [], 0.2)[0]:
                    shown += os.read(master, 65536).decode(errors="replace")
                if typed and "ready" in shown:
                    os.write(master, typed.encode())
                    typed = ""
        finally:
            shell.kill()
            shell.wait()
            os.close(master)
        self.assertIn(expected, shown)

    def test_zsh(self):
        self.typed_in_zsh("dtrain --spike-g\t", "dtrain --spike-guard")
        self.typed_in_zsh("dtrun -n 2 -- dtrain --optimizer sg\t", "--optimizer sgd")

    def test_every_flag_of_the_help_is_known(self):
        script = run(DTRAIN, "completion", "bash").stdout
        for line in run(DTRAIN, "--help").stdout.splitlines():
            flag = line.split()[0] if line.startswith("  --") else ""
            if flag and flag != "--version":
                self.assertRegex(script, rf'[ "]{flag}[ "]')

    def test_every_flag_of_the_data_tools_help_is_known(self):
        for tool in (["prepare"], ["tokenizer", "train"], ["baseline"], ["info"]):
            flags = set(re.findall(r"^  (?:-\w, )?(--[a-z][a-z0-9-]+)", run(DTRAIN, "data", *tool, "--help").stdout, re.MULTILINE))
            self.assertIn("--help", flags)
            self.assertEqual(flags - set(self.bash("dtrain", "data", *tool, "--")), set(), tool)

    def test_another_shell_is_rejected(self):
        assert_names(run(DTRAIN, "completion", "bsh", status=USAGE).stderr, "bash")
        assert_names(run(DTRAIN, "completion", status=USAGE).stderr, "SHELL")


if __name__ == "__main__":
    unittest.main()
