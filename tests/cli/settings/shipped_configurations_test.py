"""The configurations in configs/ train; they and the documents' commands fit the memory, and are bit-identical on any number of ranks."""

import functools
import hashlib
import json
import re
import shlex
import tempfile
import unittest

import dtrain_harness
from dtrain_harness import BUILD, DTRAIN, GOLDEN, SOURCE, USAGE, FolderTest, final_model, launched, metrics_of
from messages import assert_error, assert_names, lines_naming

TEXT = GOLDEN / "text.bin"
STEPS = 3
SHRUNKEN = ["--set", "model.width=32", "--set", "model.neurons=64", "--set", "data.seq_len=32"]
MINI = ["--config", "configs/experiments/mini.json", "--data", TEXT]
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def run(*command, **options):
    return dtrain_harness.run(*command, cwd=SOURCE, **options)


@functools.cache
def training_commands():
    """(document, words) of each documented command that trains a shipped configuration and needs no other file or host."""
    found = []
    for document in [SOURCE / "README.md", SOURCE / "CONTRIBUTING.md", *sorted((SOURCE / "docs").rglob("*.md"))]:
        for block in re.findall(r"^```[^\n]*\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL):
            lines = block.replace("\\\n", " ").splitlines()
            found += [(document.relative_to(SOURCE), shlex.split(line, comments=True)) for line in lines
                      if re.match(r"(dtrun .*-- )?dtrain (train )?--.*--data ", line) and "--config configs/" in line
                      and not re.search("--(init-from|val-data|nnodes) ", line)]
    return found


class Experiments(FolderTest):
    def train(self, name, *flags, ranks=1):
        run_dir = self.folder / "run"
        run(*launched(ranks, "--config", SOURCE / f"configs/experiments/{name}.json", "--data", GOLDEN / "text.bin",
                      "--run-dir", run_dir, "--steps", STEPS, "--warmup-steps", "1", "--val-fraction", "0.2",
                      "--eval-sequences", "9", "--log-every", "1", "--threads", "1", *flags))
        self.check_losses([line["loss"] for line in metrics_of(run_dir) if "event" not in line])
        return json.loads((run_dir / "config.json").read_text())

    def check_losses(self, losses):
        self.assertEqual(len(losses), STEPS)
        for loss in losses:  # ln 256 = 5.545, and no step of these moves far from it
            self.assertGreater(loss, 4)
            self.assertLess(loss, 7)
        self.assertLess(losses[-1], losses[0])

    def test_mini(self):
        config = self.train("mini")
        self.assertEqual(config["train"]["lr"], 3e-3)
        self.assertTrue(final_model(self.folder / "run").is_file())

    def test_small(self):
        self.train("small", "--global-batch", "2")

    def test_llamas(self):
        for name in ("mini_llama", "small_llama"):
            self.train(name, "--global-batch", "2", "--overwrite")

    def test_smollm2(self):
        config = self.train("smollm2", "--layers", "2", "--width", "36", "--head-dim", "4", "--intermediate-size", "32", "--seq-len", "32",
                            "--lr", "3e-3")
        self.assertEqual((config["model"]["name"], config["train"]["weight_decay"]), ("llama", 0))

    def test_25m(self):
        config = self.train("25m", *SHRUNKEN)
        self.assertEqual(config["resolved"]["batch"], {"global": 32, "microbatch": 1, "grad_accum": 32})

    def test_prod(self):
        config = self.train("prod", *SHRUNKEN, ranks=2)
        resolved = config["resolved"]
        self.assertEqual((resolved["layout"]["strategy"], resolved["batch"]["microbatch"]), ("fsdp", 1))

    def test_shakespeare_char(self):
        config = self.train("shakespeare-char", "--global-batch", "4", "--width", "36", "--seq-len", "32")
        self.assertEqual((config["model"]["name"], config["model"]["biases"], config["train"]["no_decay"]), ("gpt2", False, ["norms"]))


class Memory(FolderTest):
    @classmethod
    @functools.cache
    def gibibytes(cls, *words):
        """The predicted memory of a command's largest rank, from its error under a limit of 1 kB."""
        words = [BUILD / "bin" / word if word in ("dtrain", "dtrun") else word for word in words]
        with tempfile.TemporaryDirectory(prefix="dtrain-shipped-") as folder:
            error = run(*words, "--data", TEXT, "--run-dir", folder + "/run", "--memory-limit", "1kB", status=USAGE).stderr
        found = re.findall(r"([\d.]+) (\w*B) per rank", error)
        if not found:
            raise AssertionError(f"{words}\n{error}")
        return max(float(number) * UNITS[unit] for number, unit in found) / 2**30

    def test_every_experiment_fits_its_target_machine(self):
        def experiment(name, ranks=1):
            return self.gibibytes(*(["dtrun", "-n", ranks, "--"] if ranks > 1 else []), "dtrain",
                                  "--config", f"configs/experiments/{name}.json")

        names = {path.stem for path in SOURCE.glob("configs/experiments/*.json")}
        self.assertEqual(names, {"mini", "mini_llama", "small", "small_llama", "smollm2", "25m", "prod", "shakespeare-char"})
        for family in ("", "_llama"):
            self.assertLess(experiment("mini" + family), 0.1)
            self.assertLess(experiment("small" + family), 0.5)
        self.assertLess(experiment("smollm2"), 5)
        self.assertLess(experiment("shakespeare-char"), 1)
        self.assertLess(experiment("25m"), 4)
        self.assertLess(experiment("prod", ranks=4), 16)  # far below a GPU of 80 GB

    def test_every_command_of_the_documents_fits_four_gibibytes_a_rank(self):
        commands = training_commands()
        self.assertGreaterEqual(len(commands), 9)
        for document, words in commands:
            with self.subTest(document=str(document), command=" ".join(words)):
                # Commands that differ only in reports, folders, rates and numbers of steps or starts count once.
                kept = re.sub(r" --(resume|checkpoint-every|run-dir|data|val-fraction|threads|eval-every|lr|max-restarts|profile|steps) \S+",
                              "", " ".join(words))
                self.assertLess(self.gibibytes(*kept.split()), 4)


class Vocabulary(FolderTest):
    def test_every_experiment_adopts_the_vocabulary_of_the_data(self):
        model, tokens = self.folder / "t.model", self.folder / "t.dtok"
        for command in (["tokenizer", "train", TEXT, "--vocab-size", 400, "--output", model],
                        ["prepare", TEXT, "--tokenizer", model, "--output", tokens]):
            run(DTRAIN, "data", *command)
        for path in sorted(SOURCE.glob("configs/experiments/*.json")):
            for data, vocab in ((TEXT, 256), (tokens, 400)):
                result = run(DTRAIN, "--config", path, "--strategy", "single", "--data", data, "--print-config")
                self.assertEqual(json.loads(result.stdout)["model"]["vocab"], vocab, path.name)


class Batch(FolderTest):
    def test_mini_trains_the_same_bits_on_1_2_and_8_ranks(self):
        models = {}
        for ranks in (1, 2, 8):
            folder = self.folder / str(ranks)
            strategy = ["--strategy", "ddp"] if ranks > 1 else []
            result = run(*launched(ranks, *MINI, *strategy, "--steps", 2, "--warmup-steps", 1, "--threads", 1, "--run-dir", folder))
            self.assertEqual(lines_naming(result.stderr, "ranks", re.compile("give --")), [])
            models[ranks] = hashlib.sha256((folder / "final/model.safetensors").read_bytes()).hexdigest()
        self.assertEqual(len(set(models.values())), 1, models)

    def test_every_experiment_sets_the_microbatch(self):
        for path in sorted(SOURCE.glob("configs/experiments/*.json")):
            self.assertRegex(path.read_text(), r'"microbatch": [1-9]', path.name)
            self.assertRegex(path.read_text(), r'"global": [1-9]', path.name)

    def test_a_batch_that_depends_on_the_ranks_is_reported(self):
        small = ["--layers", 1, "--width", 16, "--neurons", 16, "--seq-len", 16, "--threads", 1, "--steps", 1, "--overwrite"]

        def notes(*flags):
            result = run(DTRAIN, *MINI, *small, "--run-dir", self.folder / "run", *flags)
            return lines_naming(result.stderr, "ranks", re.compile("give --"))

        self.assertEqual(notes(), [])
        (line,) = notes("--microbatch", "0")
        assert_names(line, "microbatch of 8", "batch of 8", "--microbatch")
        (line,) = notes("--global-batch", "0", "--microbatch", "4")
        assert_names(line, "batch of 4", "microbatches of 4", "--global-batch")

    def test_ranks_that_do_not_divide_the_batch_are_rejected_in_one_line(self):
        ranks = {"RANK": "0", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "3"}
        assert_error(run(DTRAIN, *MINI, "--strategy", "ddp", "--print-config", environment=ranks, status=None), USAGE, "--global-batch 8", "3")


if __name__ == "__main__":
    unittest.main()
