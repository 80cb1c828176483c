"""Mistakes of people who come from other programs: each is refused in one line that names what they gave and what to give.

Nothing here loads LibTorch.
"""

import gzip
import io
import json
import os
import re
import shlex
import struct
import subprocess
import tarfile
import unittest

from dtrain_harness import BUILD, CHECKPOINT, DATA, DTRAIN, DTRUN, USAGE, FolderTest, run
from messages import assert_error, assert_names, lines_naming

TEXT = "In the beginning God created the heaven and the earth.\n" * 40
RANKS = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}


class Case(FolderTest):
    """Commands run in the test's folder, which holds book.txt."""

    def setUp(self):
        super().setUp()
        self.text = self.write("book.txt", TEXT)

    def settings(self, words):
        return json.loads(run(DTRAIN, *shlex.split(words), "--print-config", cwd=self.folder).stdout)


class Values(Case):
    def test_a_flag_is_not_taken_for_the_value_of_the_flag_before_it(self):
        for flag, value in (("--resume", "auto|PATH|none"), ("--data", "FILE"), ("--config", "FILE"), ("--set", "KEY=VALUE"), ("--steps", "N")):
            self.refused(f"{flag} --print-config", flag, value, "--print-config")
            self.refused(f"--overwrite {flag}", flag, value)
        self.refused("generate --prompt --top-k", "--prompt", "--prompt=VALUE")
        self.refused("report runs --csv", "--csv", without=["TEXT"])

    def test_an_empty_value_does_not_take_the_next_flag(self):
        self.refused("--steps= --data book.txt", "--steps", '""')
        for words in ("--config= --overwrite", "--config ''"):
            self.refused(words, "--config")
        for words, name in (("--run-dir ''", "--run-dir"), ("--set run.dir=", "--set run.dir")):
            self.refused("--data book.txt " + words, name)
        self.assertFalse((self.folder / "runs").exists())

    def test_values_as_other_programs_write_them_name_ours(self):
        for words, name in (("--fsdp-sharding FULL_SHARD", "full"), ("--fsdp-sharding SHARD_GRAD_OP", "grad-op"),
                            ("--fsdp-sharding ShardingStrategy.HYBRID_SHARD", "hybrid"), ("--model gptj", "bdh"),
                            ("--schedule-pp interleaved:1", "interleaved:1"), ("--dtype bf16", "bfloat16"), ("--dtype torch.float16", "float16"),
                            ("--schedule cos", "cosine"), ("--strategy DDP", "ddp")):
            self.refused(words, words.split()[0], name)
        for word, family in (("mistral", "llama"), ("Qwen2", "llama"), ("qwen2.5", "llama"), ("qwen3", "llama"),
                             ("SmolLM2", "llama"), ("TinyLlama", "llama"), ("nanoGPT", "gpt2"), ("distilgpt2", "gpt2")):
            self.refused(f"--model {word}", "--model", word, re.compile(rf" {family}\?$"))

    def test_units_of_rates_and_a_time_of_zero_are_read(self):
        self.assertEqual(self.settings("--checkpoint-write-limit 200MB/s")["checkpoint"]["write_limit"], 200)
        self.assertEqual(self.settings("--checkpoint-every 0s"), self.settings("--checkpoint-every 0"))

    def test_a_trailing_slash_of_a_run_folder_is_ignored(self):
        self.assertEqual(self.settings("--run-dir runs/slash//")["run"]["dir"], "runs/slash")

    def test_a_damaged_configuration_of_a_run_is_named(self):
        self.write("run/config.json", '{"train": ')
        self.refused("--run-dir run --resume auto", "run/config.json")

    def test_an_unexpanded_home_folder_is_reported(self):
        for flag in ("--data", "--val-data", "--run-dir", "--init-from", "--resume", "--config", "--deepspeed-config", "--match"):
            self.refused([f"{flag}=~/book.txt"], flag, "'~/book.txt'")
        self.refused("generate --out f.txt", "--from RUN", without=["use --from"])
        self.refused(["verify", self.folder], "checkpoint verify")

    def test_quiet_and_verbose_exclude_each_other_unless_one_is_off(self):
        self.refused("--quiet -v --print-config", "--quiet", "--verbose")
        for words in ("--quiet=off --verbose", "-v=off -q"):
            self.assertIn("train", self.settings(words))

    def test_flags_with_one_dash_are_named_as_they_were_typed(self):
        for words, *names in (("-vocab 256", "--vocab"), ("-val-data book.txt", "--val-data"), ("-verbose", "--verbose"),
                              ("-version",), ("data prepare book.txt -output t.dtok", "--output"), ("checkpoint -hostfile",)):
            flag = next(word for word in words.split() if word.startswith("-"))
            self.refused(words, flag, *names)
        for option, *names in (("-hn", "2"), ("-Vn", "2"), ("-hostfile", "hosts")):
            assert_error(run(DTRUN, option, *names, "--", "true", status=None), USAGE, option)

    def test_file_and_field_names_are_not_empty(self):
        for words in ("data prepare book.txt --output", "data prepare book.txt --output t.dtok --tokenizer",
                      "data prepare book.txt --output t.dtok --field", "data tokenizer train book.txt --vocab-size 300 --output",
                      "report . --output", "report . --csv"):
            self.refused(words + "=", words.split()[-1])
            self.refused(words + " ''", words.split()[-1])

    def test_two_files_to_train_on_are_refused_and_other_repeated_flags_reported(self):
        for other in ("--data b.txt", "--set data.train=b.txt"):
            self.refused("--data a.txt " + other, "--data", "2 times", "a.txt, b.txt", "FILE:WEIGHT,FILE:WEIGHT")
        for flags, note in (("--lr 0.1 --lr 0.2", "--lr"), ("--lr 0.2 --lr 0.2", "--lr"), ("--lr 0.2 --data book.txt", "--data"),
                            ("--lr 0.1 --lr 0.2 --quiet", None)):
            result = run(DTRAIN, *flags.split(), "--data", "book.txt", "--print-config", cwd=self.folder)
            self.assertEqual(json.loads(result.stdout)["train"]["lr"], 0.2)
            self.assertEqual(len(lines_naming(result.stderr, "2 times")), int(note is not None), flags)
            self.assertIn(note or "", result.stderr)
        for name, width in (("a.json", 32), ("b.json", 64)):
            self.write(name, '{"model": {"width": %d}}' % width)
        result = run(DTRAIN, *"--config a.json --config b.json --data book.txt --print-config".split(), cwd=self.folder)
        self.assertEqual(json.loads(result.stdout)["model"]["width"], 64)
        assert_names(result.stderr, "--config b.json", "--config a.json")

    def test_a_switch_of_a_file_is_turned_off(self):
        self.write("on.json", '{"run": {"overwrite": true}, "checkpoint": {"strict_resume": true}}')
        for flags, expected in (("", True), ("--overwrite=off --strict-resume=false", False)):
            found = self.settings(f"--config on.json {flags} --data book.txt")
            self.assertEqual((found["run"]["overwrite"], found["checkpoint"]["strict_resume"]), (expected, expected))

    def test_units_are_reported(self):
        self.refused("--comm-timeout 10x", "--comm-timeout", '"10x"', "1h30m")
        self.refused("--comm-timeout 0s", "--comm-timeout", "0")
        self.refused("--checkpoint-write-limit 2X", "--checkpoint-write-limit", '"2X"', "MB/s")
        self.refused("--steps 1.5", "--steps", '"1.5"')
        for words in ("--data book.txt --memory-limit 10", "--data book.txt --set=machine.memory_limit=10", "plan --device-memory 10",
                      "plan --link 10"):
            self.refused(words, "10GB")

    def test_a_choice_that_is_not_built_is_not_offered(self):
        has_plugin = (BUILD / "lib" / "libdtrain_cuda.so").exists()
        for word in ("gpu", "cud", "cuda:0") if not has_plugin else ("gpu", "cud"):
            self.refused(f"--device {word}", "--device", f'"{word}"', "auto, cpu, cuda" if has_plugin else "auto, cpu")

    def test_starts_that_do_not_exist_are_not_called_damaged(self):
        self.write("final/model.safetensors", "x")
        (self.folder / "empty").mkdir()
        for words, *names in (("--resume nothere", "--resume nothere"), ("--resume latest", "--resume latest", "auto"),
                              ("--resume book.txt", "book.txt", "--init-from"), ("--resume empty", "empty"),
                              ("--resume final", "--init-from final/model.safetensors"), ("--init-from nothere", "--init-from nothere")):
            self.refused("--data book.txt --seq-len 16 --run-dir run " + words, *names, status=CHECKPOINT, without=["damaged"])
        self.write("old/config.json", "{}")
        for word in ("latest", "true"):  # even if the run folder contains a run
            resume = f"--resume {word}"
            self.refused("--data book.txt --seq-len 16 --run-dir old " + resume, resume, "auto", status=CHECKPOINT)
        for command in ("plan", "doctor", "--print-config"):
            self.refused(f"{command} --init-from nothere", "--init-from nothere", status=CHECKPOINT)
            self.refused(f"{command} --init-from empty", "--init-from", "'empty'", status=CHECKPOINT)
        self.assertFalse((self.folder / "run").exists())

    def test_batches_and_counts_beyond_their_range_are_named(self):
        batch = "--data book.txt --global-batch 999999999999"
        self.refused(batch, "--global-batch 999999999999", "--microbatch")
        self.refused(batch + " --grad-accum 3", "--global-batch 999999999999", "--grad-accum")
        for words in ("schedule --pp 4 --microbatches 0", "schedule --microbatches 4 --pp 0"):
            self.refused(words, "dtrain schedule", words.split()[-2], "found 0")
        self.refused("data prepare book.txt --output t.dtok --threads 0", "dtrain data prepare", "--threads", "found 0")
        for words, *names in (("--pp 4", "--microbatches"), ("--stages 3", "--stages"), ("--pp 1000 --microbatches 1000", "forward passes"),
                              ("--schedule-pp interleaved:2 --pp 4 --microbatches 6", "--schedule-pp interleaved:2", "--pp 4", "6", "4 or 8"),
                              ("--schedule-pp interleaved --pp 4 --microbatches 8", "--schedule-pp", '"interleaved"', "interleaved:V")):
            self.refused("schedule " + words, *names)


class Names(Case):
    def test_settings_of_other_trainers_in_a_file_get_ours(self):
        self.write("gpt.json", '{"n_layer": 6}')
        self.refused("--config gpt.json", '"n_layer"', "model.layers")
        self.refused("--set max_iters=5", "train.steps")

    def test_a_removed_setting_that_asks_for_other_work_is_refused_in_a_file(self):
        self.write("old.json", '{"report": {"eval_batches": 4}}')
        self.refused("--config old.json --print-config", '"report.eval_batches"', "report.eval_sequences")
        self.write("old.json", '{"layout": {"tied_reshard": "per-pass"}}')
        result = run(DTRAIN, "--config", "old.json", "--print-config", cwd=self.folder)
        assert_names(result.stderr, "warning", "old.json", "layout.tied_reshard")

    def test_a_name_is_suggested_only_if_it_is_alike(self):
        for wrong, right in (("--widht", "--width"), ("--rundir", "--run-dir"), ("--every-log", "--log-every"), ("--warmup", "--warmup-steps"),
                             ("--grad-accumulation", "--grad-accum"), ("-steps", "--steps"), ("--microbatchs", "--microbatch")):
            self.refused([wrong, "8"], wrong, right)
        for wrong in ("--save-weights", "--eval-model", "--log-graph", "--foo"):
            self.refused([wrong, "8"], wrong, "dtrain train --help", without=["mean"])
        self.write("wrong.json", '{"model": {"widht": 3}}')
        self.refused("--config wrong.json", "wrong.json", "model.width")
        self.refused("trian", '"trian"', "train")
        for key, meant in (("model.widht", "model.width"), ("eval.sequences", "report.eval_sequences"), ("eval.every", "report.eval_every")):
            self.refused(f"--set {key}=8", key, meant)

    def test_misplaced_flags_name_their_command(self):
        self.refused("--prompt x", "--prompt", "generate.prompt", "dtrain generate")
        self.refused("--model.width 64", "--width", "--set model.width=VALUE")
        self.refused("data prepare --data x", "dtrain data prepare", "--data")
        self.refused("data prepare book.txt --output t.dtok --dataset x", "dtrain data prepare", "--dataset", '"x"')
        self.refused("data prepare --outptu x", "--outptu", "--output")
        self.refused("data tokenizer train book.txt --output m", "--vocab-size")
        self.refused("--data book.txt --tokenizer m", "--tokenizer", "data prepare")
        self.refused("data baseline book.txt", "dtrain data baseline", '"book.txt"', "--data book.txt", without=["dtrain train:"])

    def test_unexpected_words_are_explained(self):
        self.write("mine.json", "{}")
        for words, *names in (
                ("book.txt", "--data book.txt"), ("train book.txt", "--data book.txt"), ("mine.json", "--config mine.json"),
                ("generate book.txt", "--from", "--prompt-file book.txt"), ("generate 'Once upon a time'", "--prompt TEXT"),
                ("--data book.txt other.txt", "--data", "data prepare"), ("train model.width=64", "--set model.width=64"),
                ("train steps=5", "--steps=5"), ("checkpoint rm", "rm -r RUN/checkpoints/step-N"), ("checkpoint ls", "list"),
                ("compare a b", "dtrain report", "checkpoint diff"), ("data", "prepare", "tokenizer", "info", "baseline"), ("data prepair", "prepare"),
                ("data info", "data info", "FILE"), ("checkpoint", "list", "inspect", "import")):
            self.refused(words, *names)
        for words in ("\u2014steps 5", "--overwrite \u2013steps 5", "\u2014-steps 5"):
            self.refused(words, "type --steps", without=["---"])

    def test_resume_names_the_flag_that_continues_a_run(self):
        for rank in ({}, RANKS):
            self.refused("--resume auto", "--resume auto", "--run-dir", environment=rank)
        (self.folder / "old/checkpoints/step-3").mkdir(parents=True)
        self.refused("--resume old", "--data", "--run-dir RUN --resume auto")

    def test_variables_of_ranks_are_named(self):
        for prefix, count in (("", "WORLD_SIZE"), ("OMPI_COMM_WORLD_", "OMPI_COMM_WORLD_SIZE")):
            self.refused("--data book.txt --strategy ddp", count, "2", "MASTER_ADDR",
                         environment={prefix + "RANK": "0", count: "2", prefix + "LOCAL_RANK": "0"})
        for words in ("data prepare book.txt --output t.dtok", "report ."):
            self.refused(words, "2 ranks", environment=RANKS)
        self.assertFalse((self.folder / "t.dtok").exists())

    def test_torchrun_options_that_dtrun_lacks_are_explained(self):
        for option, advice in (("--rdzv-conf", "--master-addr"), ("-m", "-m MODULE"), ("--no-python", "program")):
            assert_error(run(DTRUN, option, status=None), USAGE, option, advice)


class Files(Case):
    def test_configurations_in_other_formats_say_how_they_begin(self):
        for name, content, *seen in (
                ("a.yaml", "model:\n  width: 64\n", '"model:"', "JSON"),
                ("b.toml", "[model]\nwidth = 64\n", '"[model]"', "JSON"),
                ("c.py", "batch_size = 12\n", '"batch_size = 12"', "JSON"), ("c.json", "batch_size = 12\n", '"batch_size = 12"', "JSON"),
                ("d.json", '{"model": {}}'.encode("utf-16"), "UTF-16"), ("e.json", " \n", "empty"), ("f.json", '{"seed": 1,}', "comma"),
                ("g.json", '{"train": 5}', '"train"', '{"train": {...}}')):
            self.write(name, content)
            self.refused(f"--config {name}", name, *seen)

    def data_refused(self, path, *names, without=()):
        self.refused(["--data", path, "--run-dir", "run", "--seq-len", "8"], path, *names, status=DATA, without=without)

    def test_tokens_of_other_trainers_are_recognised(self):
        tokens = [(7919 * i) % 50257 for i in range(4000)]
        packed = struct.pack("<4000H", *tokens)
        self.data_refused(self.write("train.bin", packed), "nanoGPT's", f"dtrain data prepare {self.folder}/train.bin --vocab N", without=[".bin.bin"])
        self.data_refused(self.write("train.tokens", packed), f"dtrain data prepare {self.folder}/train.tokens --token-type uint16 --vocab N")
        self.data_refused(self.write("char.bin", struct.pack("<4000H", *[i % 65 for i in tokens])), "uint16")
        for code, name in (("I", "uint32"), ("Q", "uint64")):
            path = self.write("wide.bin", struct.pack(f"<4000{code}", *[3 * i for i in tokens]))
            self.data_refused(path, f"dtrain data prepare {path} --token-type {name} --vocab N", without=["nanoGPT"])
        for magic in (20240520, 20240801):
            path = self.write("val.bin", struct.pack("<256i", magic, 1, 4000, *[0] * 253) + packed)
            self.data_refused(path, "llm.c", f"dtrain data prepare {path} --output", without=[".bin.bin"])
        self.data_refused(self.folder, f"dtrain data prepare {self.folder} --output FILE.dtok")
        self.data_refused(self.write("noise", bytes(range(250, -1, -1)) * 9), "NUL")
        header = b"\x93NUMPY\x01\x00" + b"v\x00" + b"{'descr': '<u2', 'fortran_order': False, 'shape': (200,)}\n"
        self.data_refused(self.write("tokens.npy", header + struct.pack("<200H", *range(100, 300))), "NumPy", f"dtrain data prepare {self.folder}/tokens.npy --vocab N", without=["UTF-16"])
        for name, parts in (("x.pt", ("PyTorch", "numpy.save")), ("x.npz", ("npz", "numpy.save"))):
            entry = b"x/data.pkl" if name == "x.pt" else b"x.npy"
            self.data_refused(self.write(name, b"PK\x03\x04" + bytes(22) + struct.pack("<HH", len(entry), 0) + entry + bytes(9)), *parts)
        self.data_refused(self.write("x.arrow", b"\xff\xff\xff\xff\x88\x01" + bytes(90)), "Arrow stream")
        self.data_refused(self.write("x.idx", b"MMIDIDX\0\0" + bytes(90)), "Megatron")
        without_nul = struct.pack("<400H", *[256 * (1 + i % 9) + 1 + i % 200 for i in range(400)])
        self.data_refused(self.write("few.tokens", without_nul), "uint16", "--token-type uint16")
        self.data_refused(self.write("latin.bin", self.text.read_bytes()[:100] + b"\xe9"), "UTF-8")

    def test_archives_are_rejected_with_advice_to_unpack(self):
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            tar.add(self.text, "book.txt")
        self.data_refused(self.write("a.tar", archive.getvalue()), "tar", without=["nanoGPT"])
        self.write("a.tgz", gzip.compress(archive.getvalue()))
        self.refused("data prepare a.tgz --output a.dtok", "a.tgz", "tar", status=DATA)

    def test_inputs_that_are_not_text_are_rejected_with_advice(self):
        run(DTRAIN, "data", "prepare", "book.txt", "--output", "book.dtok", cwd=self.folder)
        (self.folder / "empty").mkdir()
        os.mkfifo(self.folder / "fifo")
        self.write("a.json", '[{"text": "a"}]')
        for words, *names in (
                ("data prepare book.dtok --output new.dtok", "book.dtok", "--data"),
                ("--data -", "dtrain data prepare -"), ("--data a.json", "a.json", "dtrain data prepare a.json --field"),
                ("data prepare nix --output new.dtok", "'nix'"),
                ("data prepare fifo --output new.dtok", "'fifo'"), ("data prepare book.txt --output nodir/t.dtok", "'nodir/t.dtok'"),
                ("data tokenizer train book.txt --vocab-size 300 --output nodir/t.model", "'nodir/t.model'"),
                ("--data book.txt --val-data nix", "--val-data", "'nix'"), ("--data book.dtok --val-fraction 0.0001", "--val-fraction")):
            self.refused(words, *names, status=DATA, without=["decompress", ".tmp-"])
        for words, *names in (("--data book.dtok:0.5", "--data book.dtok"), ("--data book.dtok --val-data a:1,b:1", "--val-data"),
                              ("data prepare empty --output t.dtok", "'empty'"),
                              ("data prepare a.json --output t.dtok", "a.json", "--field", "--as-text")):
            self.refused(words, *names)

    def test_text_that_is_not_utf_8_says_how_to_convert_it(self):
        for encoding, name in (("utf-16", "UTF-16"), ("utf-16-le", "UTF-16LE"), ("utf-16-be", "UTF-16BE"), ("utf-32", "UTF-32")):
            self.data_refused(self.write("text." + encoding, TEXT.encode(encoding)), f"iconv -f {name} -t UTF-8")

    def test_flags_of_other_generators_are_rejected_with_ours(self):
        for flags, ours in (("--n -n --num-samples --num_return_sequences", "--samples"),
                            ("--max-new-tokens --n-predict --num_predict -n", "--max-tokens"), ("--temp", "--temperature"),
                            ("--do-sample --repetition-penalty --repeat_penalty --presence-penalty --num-beams --best-of", "--top-p")):
            for flag in flags.split():
                self.refused(f"generate --from run {flag} 3", flag, ours)

    def test_models_of_the_hub_and_gguf_files_say_how_to_get_weights(self):
        self.write("gg/m.gguf", b"GGUF" + bytes(99))
        owned = "HuggingFaceTB/SmolLM2-135M"
        for words, status in (("--data book.txt --run-dir run --init-from {}", CHECKPOINT), ("generate --from {}", CHECKPOINT),
                              ("evaluate --data book.txt --from {}", CHECKPOINT),
                              ("checkpoint import {} folder", CHECKPOINT),
                              ("data prepare book.txt --output new.dtok --tokenizer {}", DATA)):
            for name, folder in ((owned, "SmolLM2-135M"), ("distilgpt2", "distilgpt2")):
                for path in (name, name + "/"):
                    self.refused(words.format(path), path, f"hf download {name} --local-dir {folder}", status=status)
            self.refused(words.format("gg"), "gg/m.gguf", "GGUF", "docs/guide/hugging_face.md#gguf", status=status)
            result = run(DTRAIN, *words.format("gg/m.gguf").split(), cwd=self.folder, status=status)
            # evaluate first says how it evaluates a model outside a run.
            assert_names(result.stderr.splitlines()[-1], "gg/m.gguf", "GGUF", "docs/guide/hugging_face.md#gguf")
        for path in ("runs", "sp.model", "runs/mini", "toks/sp.model", "final/model.safetensors", "a/m.bin", "a/m.pt", "a/m.gguf",
                     "a/t.json", "a/t.dtok"):
            self.refused(f"generate --from {path}", path, status=CHECKPOINT, without=["hf download"])
            self.refused(f"data prepare book.txt --output new.dtok --tokenizer {path}", path, "SentencePiece", "tokenizer.json", status=DATA,
                         without=["hf download", "GGUF"])
        for word in ("resume", "scratch"):
            self.refused(f"--data book.txt --init-from {word}", "--init-from", status=CHECKPOINT, without=["hf download"])
        for folder, name in (("HuggingFaceTB", owned), ("distilgpt2", "distilgpt2")):
            (self.folder / folder).mkdir()
            self.refused(f"generate --from {name}", name, status=CHECKPOINT, without=["--local-dir"])

    def test_a_file_that_is_not_a_model_is_named(self):
        for words, *names in (("--data book.txt --init-from book.txt", "--init-from"), ("generate --from book.txt", "--from"),
                              ("verify --golden book.txt", "--golden"), ("checkpoint import book.txt folder",)):
            self.refused(words, "'book.txt'", "RUN/final/model.safetensors", *names, status=CHECKPOINT)
        self.refused("generate --from nix", "--from nix", status=CHECKPOINT)
        piece = "step-4/model-00001-of-00002.safetensors"
        for name in (piece, "step-4/manifest.json"):
            self.write(name, "{}")
        self.refused(f"generate --from {piece}", f"--from {piece}", "--from step-4", status=CHECKPOINT)
        self.refused(f"checkpoint import {piece} out", f"'{piece}'", "export step-4 FILE", status=CHECKPOINT)

    def test_a_report_does_not_take_the_place_of_a_folder(self):
        (self.folder / "runs").mkdir()
        self.write("one/metrics.jsonl", json.dumps({"step": 1, "loss": 1.0}) + "\n")
        self.refused("report one --output runs", "runs", without=["--overwrite"])
        self.refused("report one --output nodir/r.html", "'nodir/r.html'", status=DATA)


class Help(Case):
    def help_of(self, *arguments):
        result = run(DTRAIN, *arguments)
        self.assertEqual(result.stderr, "", arguments)
        return result.stdout

    def test_every_subcommand_has_help_in_every_way_to_ask(self):
        overview = self.help_of("--help")
        for words in ("help", "help train", "train --help", "-h", "--steps 5 --help"):
            self.assertEqual(self.help_of(*words.split()), overview)
        for words in ("generate", "verify", "settings", "schedule", "data", "data prepare", "data tokenizer", "data tokenizer train", "data baseline",
                      "data info", "checkpoint", "checkpoint list", "checkpoint inspect", "checkpoint verify", "checkpoint diff",
                      "checkpoint export", "checkpoint import"):
            text = self.help_of(*words.split(), "--help")
            self.assertIn("dtrain " + words.split()[0], text)
            self.assertEqual(self.help_of("help", *words.split()), text)
            self.assertLessEqual(max(map(len, text.splitlines())), 100)
        self.refused("help trian", "train")
        for words, *names in (("help checkpoint lsit", '"lsit"', "list"), ("help data tokenizer foo", '"foo"', "--help"),
                              ("help --", '"--"'), ("help lr --", '"--"')):
            self.refused(words, *names)

    def test_a_closed_pipe_is_not_an_error(self):
        reading, writing = os.pipe()
        os.close(reading)
        result = subprocess.run([DTRAIN, "settings"], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=20, check=False)
        os.close(writing)
        self.assertEqual((result.returncode, result.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
