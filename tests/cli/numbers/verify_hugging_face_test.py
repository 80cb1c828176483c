"""dtrain verify --huggingface: models of transformers at several layouts, and planted errors."""

import json
import unittest

from dtrain_harness import GOLDEN, FolderTest, launched, run
from messages import assert_names

FIXTURES = GOLDEN.parent / "hf"


class VerifyHuggingFace(FolderTest):
    def verify(self, name, *flags, ranks=1, status=0, meta=FIXTURES / "meta.json"):
        words = ["verify", "--huggingface", FIXTURES / name, "--expected", FIXTURES / f"{name}.expected.safetensors",
                 "--trajectory", meta, "--name", name, "--text", GOLDEN / "text.bin", "--threads", "1", *flags]
        result = run(*launched(ranks, *words), status=status)
        self.answer = json.loads(result.stdout) if result.stdout else None
        return result

    def test_logits_gradients_losses_and_greedy_tokens_are_those_of_transformers(self):
        for name in ("llama", "llama3_tied", "qwen2", "qwen3", "gpt2"):
            with self.subTest(name):
                self.verify(name)
                checks = self.answer["checks"]
                self.assertTrue(self.answer["passed"])
                self.assertLessEqual({"loss", "logits", "grad.transformer.ln_f.weight" if name == "gpt2" else "grad.model.norm.weight", "trajectory.loss", "trajectory.grad_norm",
                                      "greedy.different_tokens"}, checks.keys())
                for check in ("logits", "trajectory.loss"):
                    self.assertLessEqual(checks[check]["tolerance"], 1e-5)

    def test_layouts_agree_in_float64(self):
        for name, ranks, layout in (("llama", 2, ["--strategy", "pp"]), ("llama", 2, ["--strategy", "tp"]),
                                    ("llama3_tied", 2, ["--strategy", "tp"]), ("llama3_tied", 3, ["--strategy", "pp"]),
                                    ("qwen2", 2, ["--strategy", "fsdp"]), ("qwen3", 4, ["--strategy", "tp"]),
                                    ("gpt2", 2, ["--strategy", "pp"]), ("gpt2", 4, ["--strategy", "tp", "--tp-vocab", "on"])):
            with self.subTest(name, layout=layout):
                self.verify(name, "--dtype", "float64", *layout, ranks=ranks)
                self.assertEqual(self.answer["checks"]["trajectory.loss"]["tolerance"], 1e-10)

    def test_a_wrong_loss_or_token_fails(self):
        for change in (lambda run: run["fp32"]["losses"].__setitem__(11, run["fp32"]["losses"][11] * 1.0001),
                       lambda run: run["greedy_after_training"].__setitem__(-1, 65)):
            meta = json.loads((FIXTURES / "meta.json").read_text())
            change(meta["models"]["qwen3"])
            path = self.folder / "meta.json"
            path.write_text(json.dumps(meta))
            self.verify("qwen3", meta=path, status=7)
            self.assertFalse(self.answer["passed"])

    def test_incomplete_commands_name_what_is_missing(self):
        error = run(*launched(1, "verify", "--huggingface", FIXTURES / "llama"), status=2).stderr
        assert_names(error, "--expected", "--trajectory", "--text")
        error = self.verify("llama", "--golden", "x", status=2).stderr
        assert_names(error, "--golden", "--huggingface")


if __name__ == "__main__":
    unittest.main()
