"""Help texts, flags of other trainers and number formats. Nothing here loads LibTorch."""

import json
import re
import unittest

from dtrain_harness import DTRAIN, DTRUN, SOURCE, USAGE, FolderTest, front_end_alone, make_folder, run
from messages import assert_error, assert_names, error_line
# Flags of nanoGPT, llm.c, transformers, torchtitan, Lightning, DeepSpeed, Megatron and torchrun, by the text that the error must contain ("": only the flag itself).
FOREIGN = {
    "-- dtrain": "--rdzv-endpoint --master_port",
    "--attention": "--flash --use-flash-attn",
    "--checkpoint-every": "--checkpointing_steps --always_save_checkpoint --no-save --save-every --save_steps --save_interval",
    "--comm-timeout": "--comm.train_timeout_seconds",
    "--compress": "--ddp_comm_hook",
    "--deepspeed-config FILE": "--deepspeed",
    "--device": "--no-cuda",
    "--dtype": "--fp32 --fp8",
    "--dtype bfloat16": "--bf16",
    "--dtype float16": "--loss-scale --fp16",
    "--epochs": "--num-epochs --num_train_epochs",
    "--eval-every": "--check_val_every_n_epoch --eval_interval",
    "--global-batch": "--gbs",
    "--grad-accum": "--gradient_accumulation_steps",
    "--grad-clip": "--clip-norm --gradient_clip_val --optimizer.max_norm",
    "--heads": "--n_head",
    "--init-from": "--ckpt_dir --finetune --no-load-optim",
    "--keep-best": "--save_top_k --load_best_model_at_end",
    "--layers": "--nlayers --n_layer",
    "--lr": "--learning-rate --learning_rate",
    "--matmul-precision": "--tf32",
    "--microbatch": "--per_device_eval_batch_size --mbs --training.local_batch_size --batch-size --batch_size",
    "--min-lr": "--min_lr_ratio --learning_rate_decay_frac --lr_min",
    "--offload": "--cpu_optimizer",
    "--optimizer": "--optim",
    "--patience": "--early_stopping_patience",
    "--print-config": "--dry-run",
    "--profile": "--use-pytorch-profiler --profiling.profile_freq",
    "--quiet": "--no-progress-bar --silent --disable_tqdm",
    "--recompute": "--recompute-activations --activation_checkpoint.mode",
    "--reduction": "--deterministic",
    "--resume": "--resume_run --ckpt",
    "--run-dir": "--run-name --experiment_name --exp-name --checkpoint-dir --workdir --job.dump_folder --out_dir --output_dir",
    "--schedule": "--lr_scheduler",
    "--schedule-pp": "--virtual-pipeline-model-parallel-size",
    "--seq-len": "--model_max_length --bptt --block_size --training.seq_len",
    "--steps": "--limit_train_batches --max_train_steps --train-samples --max-steps --max_iters",
    "--strategy fsdp": "--use_fsdp",
    "--strategy zero": "--use-distributed-optimizer",
    "--tensorboard": "--report_to",
    "--tensorboard off": "--no-tensorboard",
    "--time-limit": "--max-time",
    "--top-k": "--min-p --do_sample",
    "--tp": "--model-parallel-size --context-parallel-size",
    "--val-data": "--eval-data --validation_file --valid-data-path --test-data --do_predict --val",
    "--val-fraction": "--val_split --validation-split --val_ratio --split",
    "--verbose": "--debug",
    "--warmup-steps": "--warmup-updates --lr-warmup-fraction --warmup_epochs",
    "--weight-decay": "--l2",
    "--width": "--n_embd",
    "doctor": "--fast_dev_run",
    "dtrain data prepare": "--text_column",
    "dtrain evaluate": "--inference-only --test_file --eval_only --evaluate",
    "dtrain report": "--wandb-exp-name --metrics.enable_wandb --wandb_log",
    "dtrun": "--gpus --num_nodes --hostfile --local_rank=0",
    "dtrun -n RANKS": "--ngpus --n_gpus --nproc_per_node",
    "final/model.safetensors": "--push_to_hub",
    "--kv-heads": "--num-key-value-heads",
    "--norm-eps": "--norm-epsilon",
    "--layer-norm-eps": "--layernorm-epsilon",
    "--biases": "--disable-bias-linear",
    "--tie-embeddings": "--tie-word-embeddings",
    "help model": "--num-experts --rotary-percent --lora_r",
    "": "--ema --shuffle --pin-memory --workers --data-cache-path --nodes_unknown_flag --checkpoint.enable_checkpoint_interval --validation.freq",
}


def help_of(*arguments):
    result = run(DTRAIN, *arguments)
    return result.stdout


class Help(unittest.TestCase):
    def test_the_command_without_arguments_prints_one_line_for_ranks(self):
        ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
        self.assertEqual(run(DTRAIN, status=USAGE, environment=ranks).stderr.count("\n"), 1)

    def test_ranks_under_dtrun_print_it_once(self):
        for words in (["--help"], ["--version"], ["generate", "--help"], ["help", "lr"], ["data", "--help"]):
            alone = run(DTRAIN, *words).stdout
            self.assertEqual(run(DTRUN, "-n", "2", "--", DTRAIN, *words).stdout, alone)

    def test_help_accepts_any_name_of_a_setting(self):
        text = help_of("help", "lr")
        for part in ("--lr X", "train.lr", "auto", "a number", "at least 0"):
            self.assertIn(part, text)
        for name in ("--lr", "train.lr", "LR"):
            self.assertEqual(help_of("help", name), text)
        self.assertEqual(help_of("--help", "lr"), text)
        width = help_of("help", "model.width")
        for part in ("--width D", "64", "1 to 16384"):
            self.assertIn(part, width)
        self.assertEqual(help_of("help", "width"), width)
        self.assertEqual(help_of("help", "min_lr"), help_of("help", "--min-lr"))
        self.assertIn("bdh", help_of("help", "neurons"))
        for name, commands in (("layers", "train, doctor, plan"), ("run-dir", "train, doctor, plan"), ("prompt", "generate")):
            self.assertRegex(help_of("help", name), f"used by +{commands}\n")
        self.assertRegex(help_of("--help"), r"\(default: bdh; choices: bdh, llama, gpt2\)")
        self.assertIn("a switch", help_of("help", "overwrite"))
        self.assertIn("--config FILE", help_of("help", "config"))
        self.assertIn("-v, --verbose", help_of("help", "verbose"))
        self.assertIn("constant, linear, cosine, wsd", help_of("help", "--schedule"))  # "schedule" alone is a subcommand
        for name in ("model", "layout", "machine"):  # a group
            self.assertIn({"model": "--width", "layout": "--zero-stage", "machine": "--threads"}[name], help_of("help", name))
        self.assertEqual(help_of("help", "data"), help_of("data", "--help"))  # a subcommand comes first

    def test_every_setting_has_help(self):
        settings = (SOURCE / "docs/guide/settings.md").read_text()
        keys = re.findall(r"^\| `([a-z_]+\.[a-z_0-9]+)` \|", settings, re.MULTILINE)
        self.assertGreater(len(keys), 100)
        for key in keys[::9]:
            self.assertIn(key, help_of("help", key), key)

    def test_help_suggests_our_name_or_the_nearest(self):
        for name, ours in (("batch_size", "--microbatch"), ("n_layer", "--layers"), ("--learning-rate", "--lr")):
            self.assertIn(ours, help_of("help", name))
        for name, ours in (("widht", "width"), ("chekpoint-every", "checkpoint-every"), ("qqqq", "dtrain --help"), ("lora", "help model")):
            error = run(DTRAIN, "help", name, status=USAGE).stderr
            self.assertIn(ours, error)
            self.assertEqual(error.count("\n"), 1, error)


class ForeignFlags(unittest.TestCase):
    def test_each_is_rejected_with_a_pointer_to_ours(self):
        for ours, theirs in FOREIGN.items():
            for flag in theirs.split():
                with self.subTest(flag=flag):
                    result = run(DTRAIN, flag, "1", status=None)
                    assert_error(result, USAGE, flag.partition("=")[0])
                    self.assertIn(ours, result.stderr.replace(flag, "", 1))

    def test_flags_that_a_subcommand_lacks_are_rejected_with_advice(self):
        for words, *names in (("generate --verbose", "--verbose", "dtrain train"), ("evaluate -v", "-v", "dtrain train"),
                              ("verify -v", "-v", "dtrain train"), ("verify --tolerance 1e-3", "--tolerance", "--dtype"),
                              ("--tied-reshard per-use", "--tied-reshard", "fsdp", "zero"),
                              ("--set layout.tied_reshard=per-use", '"layout.tied_reshard"', "fsdp", "zero")):
            assert_error(run(DTRAIN, *words.split(), status=None), USAGE, *names)

    def test_all_unknown_flags_are_reported_at_once(self):
        error = run(DTRAIN, "--batch_size", "8", "--steps", "3", "--n_layer=4", "--foo", "1", status=USAGE).stderr
        self.assertEqual(error.count("\n"), 1, error)
        for part in ("--batch_size: use --microbatch", "also unknown: --n_layer: use --layers", "; --foo"):
            self.assertIn(part, error)
        self.assertIn("dtrun -n RANKS", run(DTRAIN, "-n", "2", "--data", "book.txt", status=USAGE).stderr)
        self.assertIn("use --ranks", run(DTRAIN, "plan", "-n", "2", "--data", "book.txt", status=USAGE).stderr)

    def test_the_end_of_a_decay_is_not_its_length(self):
        """nanoGPT's and Megatron's lr_decay_iters is the step at which the decay ends."""
        for flag in ("--lr_decay_iters=600", "--lr-decay-samples=600"):
            error = run(DTRAIN, flag, status=USAGE).stderr
            self.assertNotIn("use --decay-steps", error)
            self.assertIn("--min-lr", error)
        self.assertIn("use --decay-steps (with --schedule wsd)", run(DTRAIN, "--lr-wsd-decay-iters=6", status=USAGE).stderr)

    def test_the_short_flag_of_version_is_accepted(self):
        self.assertEqual(run(DTRAIN, "-V").stdout, run(DTRAIN, "--version").stdout)
        self.assertEqual(run(DTRUN, "-V").stdout, run(DTRUN, "--version").stdout)

    def test_dtrun_also_rejects_flags_of_other_launchers_with_advice(self):
        for flag, ours in (("--num_processes", "-n"), ("--num_gpus", "-n"), ("--gpus", "-n"), ("--num-nodes", "--nnodes"), ("--hostfile", "docs/guide/nodes.md"),
                           ("-H", "docs/guide/nodes.md"), ("--num_machines", "--nnodes"), ("--machine_rank", "--node-rank"),
                           ("--main_process_ip", "--master-addr"), ("--main_process_port", "--master-port"), ("--rdzv_conf", "--master-addr"),
                           ("--multi_gpu", ""), ("--mixed_precision", "--dtype"), ("--map-by", "--bind"), ("--bind-to", "--bind")):
            error = run(DTRUN, flag, "1", "--", "true", status=USAGE).stderr
            self.assertEqual(error.count("\n"), 1, error)
            self.assertIn(ours, error.replace(flag, "", 1))

    def test_a_text_is_rejected_as_a_configuration(self):
        book = make_folder(self) / "book.txt"
        book.write_text("Ge1:1 In the beginning\n")
        self.assertIn(f"--data {book}", run(DTRAIN, "--config", book, status=USAGE).stderr)

    def test_pythons_true_and_false_are_accepted(self):
        for value, expected in (("True", True), ("False", False)):
            found = json.loads(run(DTRAIN, f"--compile={value}", "--tie_layers", value, "--print-config").stdout)
            self.assertEqual((found["machine"]["compile"], found["model"]["tie_layers"]), (expected, expected))


class WholeNumbers(FolderTest):
    def config(self, *flags):
        return json.loads(run(DTRAIN, *flags, "--print-config", cwd=self.folder).stdout)

    def test_whole_numbers_may_have_an_exponent(self):
        found = self.config("--steps", "1e4", "--warmup-steps", "1.5e2", "--set", "batch.global=1.6e1", "--seed", "2e3", "--eval-sequences", "1e2",
                            "--val-fraction", "0.1", "--checkpoint-every", "1e3", "--keep-every=1E3", "--memory-limit", "4e9", "--width", "64.0")
        self.assertEqual((found["train"]["steps"], found["train"]["warmup_steps"], found["batch"]["global"], found["train"]["seed"]),
                         (10000, 150, 16, 2000))
        self.assertEqual((found["report"]["eval_sequences"], found["checkpoint"]["every"], found["checkpoint"]["keep_every"]), ("100", "1000", 1000))
        self.assertEqual(found["model"]["width"], 64)
        (self.folder / "c.json").write_text('{"train": {"steps": 1e4, "seed": 1e3}, "batch.global": 8.0, "checkpoint": {"every": 1e2}}')
        found = self.config("--config", "c.json")
        self.assertEqual((found["train"]["steps"], found["train"]["seed"], found["batch"]["global"], found["checkpoint"]["every"]),
                         (10000, 1000, 8, "100"))

    def test_other_numbers_are_rejected(self):
        (self.folder / "c.json").write_text('{"train": {"steps": 1.5}}')
        for flags in (["--steps", "1.5e0"], ["--steps", "1e-1"], ["--steps", "1_000"], ["--steps", "10k"], ["--steps", "1e"], ["--steps", "inf"],
                      ["--steps", "nan"], ["--steps", "1e13"], ["--seed", "-1e1"], ["--seed", "1.5"], ["--set", "train.steps=2.5"], ["--config", "c.json"],
                      ["--checkpoint-every", "1.5e0"], ["--seed", "1e19"], ["--global-batch", "1e300"]):
            with self.subTest(flags=flags):
                error = run(DTRAIN, *flags, "--print-config", status=USAGE, cwd=self.folder).stderr
                self.assertEqual(error.count("\n"), 1, error)
        self.assertEqual(self.config("--seed", "18446744073709551615")["train"]["seed"], 2**64 - 1)

    def test_other_tools_accept_them_too(self):
        self.assertEqual(run(DTRAIN, "schedule", "--pp", "2e0", "--microbatches", "4e0").stdout,
                         run(DTRAIN, "schedule", "--pp", "2", "--microbatches", "4").stdout)
        (self.folder / "a.txt").write_text("a text of some words\n" * 400)
        for size, status in (("2.7e2", 0), ("270.5", USAGE)):
            run(DTRAIN, "data", "tokenizer", "train", "a.txt", "--vocab-size", size, "--output", f"{size}.model", cwd=self.folder, status=status)


class Threads(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = make_folder(cls)
        cls.dtrain = front_end_alone(cls.folder)
        (cls.folder / "book.txt").write_bytes(b"words " * 100)

    def warned(self, *flags, **environment):
        error = run(self.dtrain, "--data", "book.txt", *flags, cwd=self.folder, status=42,
                    environment={"OMP_NUM_THREADS": "", **environment}).stderr
        return [line for line in error.splitlines() if "usable core" in line]

    def test_more_threads_than_cores_trigger_a_warning(self):
        for name, line in (("OMP_NUM_THREADS 999", self.warned(OMP_NUM_THREADS="999")), ("--threads 998", self.warned("--threads", "998"))):
            self.assertEqual(len(line), 1, line)
            self.assertIn(name, line[0])
        assert_names(self.warned("--strategy", "dp", "--local-ranks", "4", "--threads", "500")[0], "--threads 500", "4 ranks")
        self.assertEqual(self.warned() + self.warned("--threads", "1") + self.warned(OMP_NUM_THREADS="1"), [])


class Subcommands(unittest.TestCase):
    def test_names_of_other_programs_are_rejected_with_ours(self):
        for name, use in (("export", "checkpoint export"), ("ls", "checkpoint list"), ("sample", "generate --from"),
                          ("resume", "--resume auto"), ("eval", "dtrain evaluate"), ("tokenize", "data prepare")):
            for words in ((name,), (name, "x")):
                self.assertIn(use, error_line(run(DTRAIN, *words, status=USAGE).stderr, f'"{name}"'))


if __name__ == "__main__":
    unittest.main()
