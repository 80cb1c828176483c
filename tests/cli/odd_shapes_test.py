"""Sizes that are no multiple of anything give the bits of one process under every sharding, with both optimizers, in
every dtype, from disk, resumed on other ranks, and on lowered instruction sets. The random campaign of the same kind is
scripts/soak.sh parity."""

import os
import pathlib
import sys
import unittest

SOURCE = pathlib.Path(os.environ["DTRAIN_SOURCE_DIR"])
sys.path.insert(0, str(SOURCE / "scripts"))
sys.dont_write_bytecode = True
import soak_parity  # noqa: E402

STEPS = 8
DISK = ("--offload", "disk:{disk}")
OLD = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}


def once(ranks, layout, *more):
    return [(ranks, [*layout.split(), *more], STEPS)]


class OddShapes(unittest.TestCase):
    def check(self, shape, runs, environment=None, **more):
        """shape: levels, width, heads, neurons, vocabulary, positions. Four microbatches a step."""
        names = ("--levels", "--width", "--heads", "--neurons", "--vocab", "--seq-len")
        flags = {f"--{name.replace('_', '-')}": value for name, value in more.items()}
        settings = {**dict(zip(names, shape)), "--microbatch": 2, "--steps": STEPS, "--lr": 1e-2, "--threads": 1,
                    "--log-every": 0, "--val-fraction": 0.05, "--data": SOURCE / "tests/golden/text.bin", **flags}
        problems = soak_parity.compare(settings, 4, environment or {}, runs)
        self.assertEqual(problems, [], "\n".join(problems))

    def test_three_heads_of_ten_neurons_under_each_sharding(self):
        self.check((2, 30, 3, 10, 256, 9), [
            once(2, "--strategy zero --zero-stage 1"), once(2, "--strategy zero --zero-stage 2"),
            once(2, "--strategy fsdp", *DISK), once(2, "--strategy dp --local-ranks 2"),
            once(4, "--strategy fsdp --fsdp-sharding hybrid --shard-size 2")])

    def test_sgd_and_an_odd_vocabulary_on_an_older_instruction_set(self):
        self.check((1, 31, 1, 34, 257, 7), [
            once(2, "--strategy fsdp --fsdp-sharding grad-op"), once(4, "--strategy zero --zero-stage 3 --accumulate local")],
                   AVX2, optimizer="sgd", lr=1)

    def test_float64_resumed_on_other_ranks(self):
        self.check((1, 33, 3, 6, 256, 5), [[
            (2, ["--strategy", "fsdp", "--wrap", "none"], 3), (4, ["--strategy", "zero", "--zero-stage", "1"], 6),
            (1, ["--strategy", "single", *DISK], STEPS)]], dtype="float64", lr=0.1)

    def test_levels_of_their_own_without_vector_instructions(self):
        self.check((2, 7, 1, 22, 259, 11), [once(2, "--strategy zero --zero-stage 2")], OLD, tie_levels="off")

    def test_frozen_parameters_that_are_read_from_disk(self):
        self.check((1, 6, 2, 116, 256, 6), [once(1, "--strategy single", *DISK)], freeze="encoder")

    def test_sixteen_bits(self):
        self.check((1, 33, 3, 6, 256, 5), [once(2, "--strategy fsdp")], dtype="bfloat16")
        self.check((1, 33, 2, 14, 301, 5), [once(2, "--strategy zero --zero-stage 3 --wrap size:3000", *DISK)], dtype="float16",
                   optimizer="sgd")


if __name__ == "__main__":
    unittest.main()
