"""Mistakes of people who come from other programs: each is refused in one line that says what it looks like and what
to do. Nothing here loads LibTorch."""

import contextlib
import fcntl
import gzip
import io
import json
import os
import pathlib
import pty
import struct
import subprocess
import tarfile
import tempfile
import termios
import unittest

BUILD = pathlib.Path(os.environ["DTRAIN_BINARY_DIR"])
DTRAIN = BUILD / "bin" / "dtrain"
USAGE, DATA, CHECKPOINT = 2, 3, 6


def run(*arguments, cwd=None, environment=None):
    return subprocess.run([DTRAIN, *map(str, arguments)], capture_output=True, text=True, timeout=20, cwd=cwd,
                          env={**os.environ, **(environment or {})}, check=False)


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="dtrain-newcomer-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, content):
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def text(self):
        return self.write("book.txt", "In the beginning God created the heaven and the earth.\n" * 40)

    def refused(self, status, *parts, arguments, without=(), environment=None):
        result = run(*arguments, cwd=self.folder, environment=environment)
        self.assertEqual(result.returncode, status, result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("dtrain: error: "), result.stderr)
        for part in parts:
            self.assertIn(str(part), result.stderr)
        for part in without:
            self.assertNotIn(part, result.stderr)
        self.assertEqual(result.stdout, "")


class Values(Case):
    def test_a_flag_is_not_taken_for_the_value_of_the_flag_before_it(self):
        for flag, value in (("--resume", "auto|PATH|none"), ("--data", "FILE"), ("--config", "FILE"),
                            ("--set", "KEY=VALUE"), ("--steps", "N")):
            self.refused(USAGE, f"{flag} needs a value: {value}; found --print-config",
                         arguments=[flag, "--print-config"])
            self.refused(USAGE, f"{flag} needs a value: {value}", arguments=["--overwrite", flag])
        self.refused(USAGE, "--prompt needs a value", "--prompt=VALUE", arguments=["generate", "--prompt", "--top-k"])

    def test_negative_numbers_and_values_after_an_equals_sign_stay_possible(self):
        self.refused(USAGE, "--lr: found -1", arguments=["--lr", "-1"])
        self.refused(DATA, "'--odd-name'", arguments=["--data=--odd-name", "--run-dir", "r"])

    def test_an_empty_value_does_not_take_the_next_flag(self):
        self.refused(USAGE, '--steps: found ""', arguments=["--steps=", "--data", self.text()])
        self.refused(USAGE, "--config is empty", arguments=["--config=", "--overwrite"])
        self.refused(USAGE, "--config is empty", arguments=["--config", ""])

    def settings(self, *arguments):
        result = run(*arguments, "--print-config", cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def test_values_as_other_programs_write_them_name_ours(self):
        for value, name in (("FULL_SHARD", "full"), ("SHARD_GRAD_OP", "grad-op"), ("ShardingStrategy.HYBRID_SHARD", "hybrid")):
            self.refused(USAGE, f"did you mean {name}?", arguments=["--fsdp-sharding", value])
        self.refused(USAGE, "it must be bdh", arguments=["--model", "gpt2"])
        self.refused(USAGE, '"interleaved:1"', "V at least 2", arguments=["--schedule-pp", "interleaved:1"])

    def test_units_of_rates_and_a_time_of_zero_are_read(self):
        self.assertEqual(self.settings("--checkpoint-write-limit", "200MB/s")["checkpoint"]["write_limit"], 200)
        self.assertEqual(self.settings("--checkpoint-every", "0s"), self.settings("--checkpoint-every", "0"))

    def test_a_slash_at_the_end_of_a_run_folder_is_no_part_of_its_name(self):
        self.assertEqual(self.settings("--run-dir", "runs/slash//")["run"]["dir"], "runs/slash")

    def test_a_damaged_configuration_of_a_run_says_how_to_resume_without_it(self):
        (self.folder / "run").mkdir()
        self.write("run/config.json", '{"train": ')
        self.refused(USAGE, "run/config.json", "move it away", arguments=["--run-dir", "run", "--resume", "auto"])

    def test_a_home_folder_that_no_shell_replaced_is_told(self):
        for flag in ("--data", "--val-data", "--run-dir", "--init-from", "--resume", "--config", "--deepspeed-config"):
            self.refused(USAGE, "'~/book.txt'", "shells replace ~", arguments=[f"{flag}=~/book.txt"])
        self.refused(USAGE, "standard output", "--from RUN", without=["use --from"], arguments=["generate", "--out", "f.txt"])
        self.refused(USAGE, "dtrain checkpoint verify", arguments=["verify", self.folder])

    def test_a_switch_takes_no_value(self):
        for flag in ("--overwrite", "--print-config"):
            self.refused(USAGE, flag, "banana", arguments=[f"{flag}=banana"])
        self.refused(USAGE, '--overwrite takes no value, but "true" follows it', arguments=["--overwrite", "true"])

    def test_two_files_to_train_on_are_refused_and_other_repeated_flags_reported(self):
        for other in (("--data", "b.txt"), ("--set", "data.train=b.txt")):
            self.refused(USAGE, "--data is given 2 times (a.txt, b.txt)", "FILE:WEIGHT,FILE:WEIGHT",
                         arguments=["--data", "a.txt", *other])
        text = self.text()
        for flags, note in ((("--lr", "0.1", "--lr", "0.2"), "--lr is given 2 times (0.1, 0.2)"),
                            (("--lr", "0.2", "--lr", "0.2"), "--lr is given 2 times (0.2, 0.2)"),
                            (("--lr", "0.2", "--data", text), f"--data is given 2 times ({text}, {text})"),
                            (("--lr", "0.1", "--lr", "0.2", "--quiet"), None)):
            result = run(*flags, "--data", text, "--print-config", cwd=self.folder)
            self.assertEqual(json.loads(result.stdout)["train"]["lr"], 0.2)
            self.assertEqual(result.stderr.count(" is given 2 times"), int(note is not None), flags)
            self.assertIn(note or "", result.stderr)
        for name, width in (("a.json", 32), ("b.json", 64)):
            self.write(name, '{"model": {"width": %d}}' % width)
        result = run("--config", "a.json", "--config", "b.json", "--data", self.text(), "--print-config", cwd=self.folder)
        self.assertEqual(json.loads(result.stdout)["model"]["width"], 64)
        self.assertIn("--config b.json replaces --config a.json", result.stderr)

    def test_a_switch_of_a_file_is_turned_off(self):
        (self.folder / "on.json").write_text('{"run": {"overwrite": true}, "checkpoint": {"strict_resume": true}}')
        for flags, expected in (((), True), (("--overwrite=off", "--strict-resume=false"), False)):
            result = run("--config", "on.json", *flags, "--data", self.text(), "--print-config", cwd=self.folder)
            found = json.loads(result.stdout)
            self.assertEqual((found["run"]["overwrite"], found["checkpoint"]["strict_resume"]), (expected, expected))

    def test_units_are_told(self):
        self.refused(USAGE, '--comm-timeout: found "10x"', "1h30m", "seconds", "above 0", arguments=["--comm-timeout", "10x"])
        self.refused(USAGE, "--comm-timeout: found 0", arguments=["--comm-timeout", "0s"])
        self.refused(USAGE, '--checkpoint-write-limit: found "2X"', "MB/s", arguments=["--checkpoint-write-limit", "2X"])
        self.refused(USAGE, '--steps: found "1.5"', "a whole number of steps", arguments=["--steps", "1.5"])

    def test_times_and_sizes_have_the_units_that_users_type(self):
        def printed(*flags):
            result = run("train", *flags, "--data", self.text(), "--print-config", cwd=self.folder)
            self.assertEqual(0, result.returncode, result.stderr)
            return json.loads(result.stdout)

        seconds = {"30": 30, "90s": 90, "10min": 600, "2h30m": 9000, "1:50": 110, "1:50:00": 6600, "1-02:00:00": 93600}
        for text, expected in seconds.items():
            with self.subTest(text):
                flags = ("--comm-timeout", text, "--time-limit", text, "--checkpoint-every", text)
                found = printed(*flags)
                self.assertEqual(found["machine"]["comm_timeout"], expected)
                self.assertEqual((found["run"]["time_limit"], found["checkpoint"]["every"]), (text, text))
                (self.folder / "times.json").write_text(json.dumps({"machine.comm_timeout": text, "run.time_limit": text}))
                found = printed("--config", "times.json")
                self.assertEqual((found["machine"]["comm_timeout"], found["run"]["time_limit"]), (expected, text))
        for text in ("4G", "512m", "4Gi", "4GB", "4GiB", "1.5g", "1.2 GiB"):
            self.assertEqual(printed("--memory-limit", text)["machine"]["memory_limit"], text)
        for text, expected in (("200", 200), ("200MB", 200), ("200MB/s", 200), ("1k", 0.001024)):
            self.assertEqual(printed("--checkpoint-write-limit", text)["checkpoint"]["write_limit"], expected)

    def test_a_choice_that_is_not_built_is_not_offered(self):
        has_plugin = (BUILD / "lib" / "libdtrain_cuda.so").exists()
        choices = "one of auto, cpu, cuda" if has_plugin else "one of auto, cpu (cuda needs GPU support"
        if has_plugin:
            self.refused(USAGE, '"gpu"', choices, "did you mean cuda?", arguments=["--device", "gpu"])
        for word in ("cud",) if has_plugin else ("cud", "gpu", "cuda:0"):
            self.refused(USAGE, f'"{word}"', choices, without=["did you mean"], arguments=["--device", word])
        self.refused(USAGE, "did you mean bfloat16?", arguments=["--dtype", "bf16"])
        self.refused(USAGE, "did you mean float16?", arguments=["--dtype", "torch.float16"])
        self.refused(USAGE, "did you mean cosine?", arguments=["--schedule", "cos"])
        self.refused(USAGE, "did you mean ddp?", arguments=["--strategy", "DDP"])

    def test_starts_that_do_not_exist_are_not_called_damaged(self):
        arguments = ["--data", self.text(), "--seq-len", "16", "--run-dir", "run"]
        damaged = ["damaged"]
        self.refused(CHECKPOINT, "--resume nothere: no such file or folder; give auto", without=damaged,
                     arguments=[*arguments, "--resume", "nothere"])
        self.refused(CHECKPOINT, "--resume latest: no such", "did you mean auto?",
                     arguments=[*arguments, "--resume", "latest"])
        self.refused(CHECKPOINT, "it is a file, not a checkpoint's folder", "--init-from", without=damaged,
                     arguments=[*arguments, "--resume", self.text()])
        (self.folder / "empty").mkdir()
        self.refused(CHECKPOINT, "'empty' is not a run folder", without=damaged,
                     arguments=[*arguments, "--resume", "empty"])
        (self.folder / "final").mkdir()
        self.write("final/model.safetensors", "x")
        self.refused(CHECKPOINT, "--init-from final/model.safetensors", without=damaged,
                     arguments=[*arguments, "--resume", "final"])
        self.refused(CHECKPOINT, "--init-from nothere: no such file or folder", without=damaged,
                     arguments=[*arguments, "--init-from", "nothere"])
        self.assertFalse((self.folder / "run").exists())


class Names(Case):
    def test_names_of_other_trainers_get_ours(self):
        for theirs, ours in (
                ("--batch-size", "--microbatch"), ("--batch_size", "--microbatch"), ("--num-epochs", "--epochs"),
                ("--learning-rate", "--lr"), ("--learning_rate", "--lr"), ("--max-steps", "--steps"),
                ("--max_iters", "--steps"), ("--save-every", "--checkpoint-every"),
                ("--save_steps", "--checkpoint-every"), ("--save_interval", "--checkpoint-every"),
                ("--eval_interval", "--eval-every"), ("--fp16", "--dtype (--dtype float16)"),
                ("--bf16", "--dtype (--dtype bfloat16)"), ("--gradient_accumulation_steps", "--grad-accum"),
                ("--out_dir", "--run-dir"), ("--output_dir", "--run-dir"), ("--block_size", "--seq-len"),
                ("--n_layer", "--levels"), ("--n_head", "--heads"), ("--n_embd", "--width"), ("--ckpt", "--resume"),
                ("--training.seq_len", "--seq-len"), ("--optimizer.max_norm", "--grad-clip")):
            expected = "did you mean" if theirs == "--training.seq_len" else f"unknown flag {theirs}: use {ours}"
            self.refused(USAGE, expected, ours, arguments=[theirs, "8"])
        for option in ("--nproc_per_node=2", "--rdzv-endpoint=x", "--master_port=1"):
            self.refused(USAGE, "dtrun starts the ranks", "-- dtrain", arguments=[option])
        file = self.write("gpt.json", '{"n_layer": 6}')
        self.refused(USAGE, 'unknown setting "n_layer": use model.levels', arguments=["--config", file])
        self.refused(USAGE, ": use train.steps", arguments=["--set", "max_iters=5"])

    def test_a_name_is_suggested_only_if_it_is_alike(self):
        for wrong, right in (("--widht", "--width"), ("--rundir", "--run-dir"), ("--every-log", "--log-every"),
                             ("--warmup", "--warmup-steps"), ("--grad-accumulation", "--grad-accum"),
                             ("-steps", "--steps"), ("--microbatchs", "--microbatch")):
            self.refused(USAGE, f"unknown flag {wrong}", f"did you mean {right}?" if wrong != "--grad-accumulation"
                         else right, arguments=[wrong, "8"])
        for wrong in ("--save-weights", "--eval-model", "--log-graph", "--foo"):
            self.refused(USAGE, f"unknown flag {wrong}; dtrain train --help", without=["did you mean"],
                         arguments=[wrong, "8"])

    def test_flags_of_other_places_say_where_they_belong(self):
        self.refused(USAGE, "--prompt (setting generate.prompt) is not a flag of dtrain train, but of dtrain generate",
                     arguments=["--prompt", "x"])
        self.refused(USAGE, "it is the key of --width in files; --set model.width=VALUE",
                     arguments=["--model.width", "64"])

    def test_words_say_what_they_are(self):
        book = self.text().name
        self.refused(USAGE, f"give it as --data {book}", arguments=[book])
        self.refused(USAGE, f"give it as --data {book}", arguments=["train", book])
        self.write("mine.json", "{}")
        self.refused(USAGE, "give it as --config mine.json", arguments=["mine.json"])
        self.refused(USAGE, f"give it as --from or --prompt-file {book}", arguments=["generate", book])
        self.refused(USAGE, "a text is given as --prompt TEXT", arguments=["generate", "Once upon a time"])
        self.refused(USAGE, "--data takes one file", "data prepare", arguments=["--data", book, "other.txt"])
        self.refused(USAGE, "give it as --set model.width=64", arguments=["train", "model.width=64"])
        for switch in ("--overwrite", "--strict-resume", "--strict_resume"):
            self.refused(USAGE, "takes no value, but \"True\" follows it", arguments=[switch, "True"])
        self.refused(USAGE, "--csv needs a value", without=["TEXT"], arguments=["report", "runs", "--csv"])
        self.refused(USAGE, "rm -r RUN/checkpoints/step-N", arguments=["checkpoint", "rm"])
        self.refused(USAGE, "dtrain checkpoint list RUN", arguments=["checkpoint", "ls"])
        self.refused(USAGE, "dtrain report RUN RUN", "dtrain checkpoint diff", arguments=["compare", "a", "b"])
        self.refused(USAGE, "give it as --steps=5", arguments=["train", "steps=5"])
        self.refused(USAGE, "type --steps", arguments=["\u2014steps", "5"])
        self.refused(USAGE, "type --steps", arguments=["--overwrite", "\u2013steps", "5"])
        self.refused(USAGE, "type --steps", without=["---"], arguments=["\u2014-steps", "5"])

    def test_tools_without_an_action_name_them(self):
        for name, tools in (("data", ("prepare", "tokenizer", "info", "baseline")), ("checkpoint", ("list", "inspect", "import"))):
            self.refused(USAGE, f"dtrain {name} needs one of", *tools, arguments=[name])
        self.refused(USAGE, "did you mean prepare?", arguments=["data", "prepair"])
        self.refused(USAGE, "dtrain data info: FILE is required", arguments=["data", "info"])


class Files(Case):
    def test_configurations_in_other_formats_say_what_they_look_like(self):
        for name, content, seen in (
                ("a.yaml", "model:\n  width: 64\n", "YAML"), ("a.json", "# x\nsteps: 5\n", "YAML"),
                ("b.toml", "[model]\nwidth = 64\n", "TOML"), ("b.json", "[model]\nwidth = 64\n", "TOML"),
                ("c.py", "batch_size = 12\n", "Python"), ("c.json", "batch_size = 12\n", "TOML or Python"),
                ("d.json", '{"model": {}}'.encode("utf-16"), "UTF-16 text")):
            self.refused(USAGE, name, f"it looks like {seen}, but configuration files are JSON",
                         arguments=["--config", self.write(name, content)])
        self.refused(USAGE, "it is empty", arguments=["--config", self.write("e.json", " \n")])
        self.refused(USAGE, "is there a comma too many", arguments=["--config", self.write("f.json", '{"seed": 1,}')])
        self.refused(USAGE, '"train", which is a group', '{"train": {...}}',
                     arguments=["--config", self.write("g.json", '{"train": 5}')])

    def data_refused(self, *parts, path, without=()):
        self.refused(DATA, path, *parts, without=without, arguments=["--data", path, "--run-dir", "run", "--seq-len", "8"])

    def test_a_folder_is_turned_into_a_command(self):
        self.data_refused("is a directory", f"dtrain data prepare {self.folder} --output FILE.dtok", path=self.folder)

    def test_tokens_of_other_trainers_are_recognised(self):
        tokens = [(7919 * i) % 50257 for i in range(4000)]
        path = self.write("train.bin", struct.pack("<4000H", *tokens))
        self.data_refused("16-bit tokens without a header, as nanoGPT's", f"dtrain data prepare {path} --vocab N",
                          without=["under a name"], path=path)
        path = self.write("train.tokens", struct.pack("<4000H", *tokens))
        self.data_refused("under a name that ends with .bin", f"dtrain data prepare {path}.bin --vocab N", path=path)
        characters = self.write("char.bin", struct.pack("<4000H", *[i % 65 for i in tokens]))
        self.data_refused("16-bit tokens without a header", path=characters)
        for magic in (20240520, 20240801):
            header = struct.pack("<256i", magic, 1, 4000, *[0] * 253)
            path = self.write("val.bin", header + struct.pack("<4000H", *tokens))
            self.data_refused("a token file of llm.c", f"dtrain data prepare {path} --output", without=["under a name"], path=path)
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            tar.add(self.text(), "book.txt")
        self.data_refused("a tar archive", "unpack it", without=["nanoGPT"], path=self.write("a.tar", archive.getvalue()))
        self.refused(DATA, "a tar archive", "unpack it", arguments=["data", "prepare", self.write("a.tgz", gzip.compress(archive.getvalue())),
                                                                    "--output", "a.dtok"])
        self.data_refused("binary (it holds NUL bytes)", path=self.write("noise", bytes(range(250, -1, -1)) * 9))

    def test_inputs_that_are_no_texts_say_what_to_do(self):
        prepare = lambda path, *flags: ["data", "prepare", path, "--output", "new.dtok", *flags]
        run("data", "prepare", self.text(), "--output", "book.dtok", cwd=self.folder)
        self.refused(DATA, "book.dtok", "train on it with --data", without=["decompress"], arguments=prepare("book.dtok"))
        self.refused(DATA, "standard input cannot be read", arguments=prepare("-"))
        self.refused(DATA, "standard input cannot be read", arguments=["--data", "-"])
        for content in ('[{"text": "a"}]', '[\n {"text": "a"}\n]\n'):
            self.refused(DATA, "jq -c", arguments=prepare(self.write("a.json", content), "--field", "text"))
        self.refused(USAGE, "give one file without a weight: --data book.dtok", arguments=["--data", "book.dtok:0.5"])
        self.refused(USAGE, "it takes one file", arguments=["--data", "book.dtok", "--val-data", "a:1,b:1"])
        self.refused(DATA, "raise --val-fraction", arguments=["--data", "book.dtok", "--val-fraction", "0.0001"])

    def test_text_that_is_not_utf_8_says_how_to_convert_it(self):
        text = "In the beginning God created the heaven and the earth.\n" * 9
        for encoding, parts in (("utf-16", ["UTF-16 text", "iconv -f UTF-16 -t UTF-8"]),
                                ("utf-16-le", ["UTF-16 text", "iconv -f UTF-16LE -t UTF-8"]),
                                ("utf-16-be", ["UTF-16 text", "iconv -f UTF-16BE -t UTF-8"]),
                                ("utf-32", ["UTF-32 text", "iconv -f UTF-32 -t UTF-8"])):
            self.data_refused(*parts, path=self.write("text." + encoding, text.encode(encoding)))


class Help(Case):
    def help_of(self, *arguments):
        result = run(*arguments)
        self.assertEqual((result.returncode, result.stderr), (0, ""), arguments)
        return result.stdout

    def test_every_subcommand_has_help_in_every_way_to_ask(self):
        overview = self.help_of("--help")
        for arguments in (["help"], ["help", "train"], ["train", "--help"], ["-h"], ["--steps", "5", "--help"]):
            self.assertEqual(self.help_of(*arguments), overview)
        for name in (["generate"], ["verify"], ["settings"], ["schedule"], ["data"], ["data", "prepare"],
                     ["data", "tokenizer"], ["data", "tokenizer", "train"], ["data", "baseline"], ["data", "info"], ["checkpoint"], ["checkpoint", "list"], ["checkpoint", "inspect"],
                     ["checkpoint", "verify"], ["checkpoint", "diff"], ["checkpoint", "export"],
                     ["checkpoint", "import"]):
            text = self.help_of(*name, "--help")
            self.assertIn("dtrain " + name[0], text)
            self.assertEqual(self.help_of("help", *name), text)
            self.assertLessEqual(max(map(len, text.splitlines())), 100)
        self.assertEqual(run("help", "trian").returncode, USAGE)

    def shown_on_terminal(self, columns, *arguments):
        terminal, end = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = subprocess.Popen([DTRAIN, *arguments], stdout=end)
        os.close(end)
        shown = b""
        with contextlib.suppress(OSError):  # how a terminal tells that its other end is closed
            while part := os.read(terminal, 65536):
                shown += part
        os.close(terminal)
        self.assertEqual(process.wait(timeout=20), 0)
        return shown.decode().replace("\r", "")

    def test_it_is_broken_between_words_for_a_narrow_terminal(self):
        for name in ("train", "data", "report", "checkpoint", "schedule", "completion", "doctor", "plan", "generate", "verify"):
            whole = self.help_of(name, "--help")
            narrow = self.shown_on_terminal(80, name, "--help")
            self.assertLessEqual(max(map(len, narrow.splitlines())), 80, name)
            self.assertEqual(narrow.split(), whole.split(), name)


class NamesOfWhatWasGiven(Case):
    """The message has the flag or file that the user gave, and advice that can be followed."""

    def test_data_baseline_is_named(self):
        self.refused(USAGE, 'dtrain data baseline: unexpected word "book.txt"', "--data book.txt", without=("dtrain train:",),
                     arguments=["data", "baseline", self.text().name])

    def test_a_batch_that_makes_too_large_microbatches_is_named(self):
        batch = ["--data", self.text(), "--global-batch", "999999999999"]
        self.refused(USAGE, "--global-batch 999999999999 makes an accumulation of", "raise --microbatch", arguments=batch)
        self.refused(USAGE, "--global-batch 999999999999 makes a microbatch of", "raise --grad-accum", arguments=[*batch, "--grad-accum", "3"])

    def test_resume_says_which_flag_goes_on_with_a_run(self):
        for rank in ({}, {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}):
            self.refused(USAGE, "--resume auto needs --run-dir", arguments=["--resume", "auto"], environment=rank)
        run_folder = self.folder / "old"
        (run_folder / "checkpoints/step-3").mkdir(parents=True)
        self.refused(USAGE, "--data is missing", "--run-dir RUN --resume auto", arguments=["--resume", run_folder])

    def test_a_size_without_a_unit_that_fits_nothing_is_refused(self):
        for flag in ("--memory-limit", "--set=machine.memory_limit"):
            arguments = [flag, "10"] if flag == "--memory-limit" else [f"{flag}=10"]
            self.refused(USAGE, "10 without a unit is bytes", "10GB", arguments=["--data", self.text(), *arguments])

    def test_flags_of_the_data_tools_are_named(self):
        self.refused(USAGE, "unknown flag --data: name the inputs without a flag", arguments=["data", "prepare", "--data", "x"])
        self.refused(USAGE, "unknown flag --outptu: did you mean --output?", arguments=["data", "prepare", "--outptu", "x"])
        self.refused(USAGE, "--vocab-size is required", arguments=["data", "tokenizer", "train", self.text(), "--output", "m"])
        self.refused(USAGE, "unknown flag --tokenizer", "dtrain data prepare", arguments=["--data", self.text(), "--tokenizer", "m"])
        self.refused(USAGE, "--recompute", arguments=["--activation_checkpoint.mode", "full"])

    def test_a_run_folder_without_a_name_is_refused(self):
        for arguments, name in ((["--run-dir", ""], "--run-dir"), (["--set", "run.dir="], "--set run.dir")):
            self.refused(USAGE, f"{name} is empty: name a folder, or leave it out",
                         arguments=["--data", self.text(), *arguments])
        self.assertFalse((self.folder / "runs").exists())

    def test_a_number_that_is_given_is_not_missing(self):
        self.refused(USAGE, "--microbatches: found 0, but it must be 1 to",
                     arguments=["schedule", "--pp", "4", "--microbatches", "0"])
        self.refused(USAGE, "--microbatches is required", arguments=["schedule", "--pp", "4"])

    def test_the_variable_that_counts_ranks_is_named(self):
        for prefix, count in (("", "WORLD_SIZE"), ("OMPI_COMM_WORLD_", "OMPI_COMM_WORLD_SIZE")):
            self.refused(USAGE, f"{count} says 2 ranks, but MASTER_ADDR",
                         arguments=["--data", self.text(), "--strategy", "ddp"],
                         environment={prefix + "RANK": "0", count: "2", prefix + "LOCAL_RANK": "0"})

    def test_the_nearest_key_of_another_group_is_named(self):
        for key, meant in (("eval.sequences", "report.eval_sequences"), ("eval.every", "report.eval_every")):
            self.refused(USAGE, f'unknown setting "{key}": did you mean {meant}?', arguments=["--set", key + "=8"])

    def test_text_in_place_of_a_model_file_is_told(self):
        text = self.text()
        for flags, start in ((["--data", text, "--init-from", text], "--init-from: "),
                             (["generate", "--from", text], "--from: "),
                             (["verify", "--golden", text], "--golden: "),
                             (["checkpoint", "import", text, "folder"], "")):
            self.refused(CHECKPOINT, f"{start}'{text}' is text, where a model file", "RUN/final/model.safetensors",
                         arguments=flags)

    def test_flags_of_missing_files_are_named(self):
        self.refused(CHECKPOINT, "--from nix: no such file or folder; give a run folder",
                     arguments=["generate", "--from", "nix"])
        self.refused(DATA, "--val-data: data file 'nix' does not exist",
                     arguments=["--data", self.text(), "--val-data", "nix"])

    def test_a_numpy_array_is_told_from_text_in_utf_16(self):
        header = b"\x93NUMPY\x01\x00" + b"v\x00" + b"{'descr': '<u2', 'fortran_order': False, 'shape': (200,)}\n"
        array = self.write("tokens.npy", header + struct.pack("<200H", *range(100, 300)))
        self.refused(DATA, "is a NumPy array", without=("UTF-16",), arguments=["--data", array])

    def test_prepare_asks_for_what_it_takes(self):
        (self.folder / "empty").mkdir()
        os.mkfifo(self.folder / "fifo")
        for path in ("nix", "fifo"):
            self.refused(DATA, f"'{path}'", "give a plain text", without=("token file",),
                         arguments=["data", "prepare", path, "--output", "t.dtok"])
        self.refused(USAGE, "no text is found in 'empty'", arguments=["data", "prepare", "empty", "--output", "t.dtok"])

    def test_work_for_one_process_is_refused_to_several_ranks(self):
        ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
        for arguments in (["data", "prepare", self.text(), "--output", "t.dtok"], ["report", self.folder]):
            self.refused(USAGE, "launched with 2 ranks", "one process", arguments=arguments, environment=ranks)
        self.assertFalse((self.folder / "t.dtok").exists())

    def test_a_report_does_not_take_the_place_of_a_folder(self):
        (self.folder / "runs").mkdir()
        (self.folder / "one").mkdir()
        self.write("one/metrics.jsonl", json.dumps({"step": 1, "loss": 1.0}) + "\n")
        self.refused(USAGE, "runs is a folder", without=["--overwrite"], arguments=["report", "one", "--output", "runs"])

    def test_a_file_that_cannot_be_made_has_the_name_that_was_given(self):
        self.refused(DATA, "'nodir/t.dtok' cannot be created", without=(".tmp-",),
                     arguments=["data", "prepare", self.text(), "--output", "nodir/t.dtok"])

    def test_a_file_of_a_checkpoint_is_no_model_file(self):
        folder = self.folder / "step-4"
        folder.mkdir()
        piece = folder / "model-00001-of-00002.safetensors"
        for name in (piece.name, "manifest.json"):
            (folder / name).write_text("{}")
        self.refused(CHECKPOINT, f"--from {piece}: it is a file of a checkpoint", f"--from {folder}",
                     arguments=["generate", "--from", piece])
        self.refused(CHECKPOINT, f"'{piece}' is one of 2 pieces of a checkpoint", f"export {folder} FILE",
                     arguments=["checkpoint", "import", piece, "out"])

    def test_options_of_torchrun_that_dtrun_lacks_are_answered(self):
        for option, advice in (("--rdzv-conf", "--master-addr"), ("-m", "-m MODULE"), ("--no-python", "any program")):
            result = subprocess.run([BUILD / "bin/dtrun", option], capture_output=True, text=True, timeout=20, check=False)
            self.assertEqual((result.returncode, result.stderr.count("\n")), (USAGE, 1), result.stderr)
            self.assertIn(f"unknown option {option.split('=')[0]}: ", result.stderr)
            self.assertIn(advice, result.stderr)

    def test_a_reader_that_went_away_is_no_error(self):
        reading, writing = os.pipe()
        os.close(reading)
        result = subprocess.run([DTRAIN, "settings"], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=20,
                                check=False)
        os.close(writing)
        self.assertEqual((result.returncode, result.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
