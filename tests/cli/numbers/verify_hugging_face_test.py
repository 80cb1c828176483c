"""dtrain verify --huggingface: models of transformers at several layouts, and planted errors."""

import json
import unittest

from dtrain_harness import CHECKPOINT, DATA, GOLDEN, FolderTest, launched, run
from messages import assert_names

FIXTURES = GOLDEN.parent / "hf"
META, TEXT = FIXTURES / "meta.json", GOLDEN / "text.bin"


class VerifyHuggingFace(FolderTest):
    def verify(self, name, *flags, ranks=1, status=0, folder=None, meta=META, text=TEXT):
        words = ["verify", "--huggingface", folder or FIXTURES / name, "--expected", FIXTURES / f"{name}.expected.safetensors",
                 "--trajectory", meta, "--name", name, "--text", text, "--threads", "1", *flags]
        result = run(*launched(ranks, *words), status=status)
        self.answer = json.loads(result.stdout) if result.stdout else None
        return result

    def changed_meta(self, name, change):
        meta = json.loads(META.read_text())
        change(meta["models"][name])
        return self.write("meta.json", json.dumps(meta))

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
            self.verify("qwen3", meta=self.changed_meta("qwen3", change), status=7)
            self.assertFalse(self.answer["passed"])

    def test_sequences_outside_the_text_are_refused(self):
        size = 30000
        outside = next(offset for offset in json.loads(META.read_text())["models"]["llama"]["offsets"][0] if offset > size)
        text = self.write("short.txt", TEXT.read_bytes()[:size])
        assert_names(self.verify("llama", text=text, status=DATA).stderr, META, outside, size, text)
        for offsets, *values in (([-1], -1), ([], 0)):
            meta = self.changed_meta("llama", lambda run, given=offsets: run["offsets"].__setitem__(1, given))
            assert_names(self.verify("llama", meta=meta, status=DATA).stderr, meta, *values)

    def test_a_greedy_token_outside_the_vocabulary_is_refused(self):
        for token in (256, -1):
            meta = self.changed_meta("llama", lambda run, given=token: run["greedy_after_training"].__setitem__(9, given))
            assert_names(self.verify("llama", meta=meta, status=DATA).stderr, meta, token, 9, FIXTURES / "llama")

    def test_a_folder_without_weights_is_refused(self):
        folder = self.write("model/config.json", (FIXTURES / "llama" / "config.json").read_text()).parent
        assert_names(self.verify("llama", folder=folder, status=CHECKPOINT).stderr, folder)

    def test_incomplete_commands_name_what_is_missing(self):
        error = run(*launched(1, "verify", "--huggingface", FIXTURES / "llama"), status=2).stderr
        assert_names(error, "--expected", "--trajectory", "--text")
        error = self.verify("llama", "--golden", "x", status=2).stderr
        assert_names(error, "--golden", "--huggingface")


if __name__ == "__main__":
    unittest.main()
