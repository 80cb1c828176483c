"""Hugging Face's tokenizer.json in `dtrain data prepare` and in runs: tokens compared with those of the package tokenizers."""

import json
import math
import unittest

from data_harness import DataTest, read_token_file
from data_training_test import TINY, header_of
from dtrain_harness import CHECKPOINT, DATA, DTRAIN, GOLDEN, USAGE, final_model, metrics_of, run
from messages import error_line

VARIANTS = json.loads((GOLDEN / "tokenizers" / "variants.json").read_text())  # generate.py beside it
HUGGING_FACE = 3
END = "<|end|>"


def tokenizer_json(name):
    """The tokenizer.json of a variant, and the tokens of each text."""
    variant = next(each for each in VARIANTS["variants"] if each["name"] == name)
    parts = {key: variant[key] for key in ("pre_tokenizer", "normalizer") if key in variant}
    whole = {**VARIANTS["base"], **parts, "added_tokens": VARIANTS["base"]["added_tokens"] + variant.get("added_tokens", [])}
    whole["model"] = {**whole["model"], **variant.get("model", {})}
    return whole, variant["ids"]


class TokenizerJson(DataTest):
    def save(self, name, folder="model"):
        whole, ids = tokenizer_json(name)
        (self.folder / folder).mkdir(exist_ok=True)
        return self.write(f"{folder}/tokenizer.json", json.dumps(whole, ensure_ascii=False, indent=1)), ids

    def documents(self):
        return self.write("texts.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in VARIANTS["texts"]))


class Prepare(TokenizerJson):
    def test_documents_have_the_tokens_of_the_package(self):
        texts = self.documents()
        for name in ("gpt2", "llama3", "qwen2", "smollm2", "added, normalized"):
            with self.subTest(name):
                path, ids = self.save(name)
                for given in (path, path.parent):
                    found = self.prepare(texts, "--field", "text", "--tokenizer", given)
                    self.assertEqual(found.documents, [tokens for tokens, text in zip(ids, VARIANTS["texts"]) if text])
                    self.assertEqual((found.tokenizer, found.model), (HUGGING_FACE, path.read_bytes()))
                    self.assertEqual(found.num_bytes, sum(len(text.encode()) for text in VARIANTS["texts"]))

    def test_a_token_ends_documents_on_request(self):
        path, ids = self.save("gpt2")
        found = self.prepare(self.documents(), "--field", "text", "--tokenizer", path, "--document-end", END)
        self.assertEqual(found.documents, [[*tokens, 0] for tokens, text in zip(ids, VARIANTS["texts"]) if text])
        self.assertTrue(found.model.startswith(path.read_bytes()))
        self.assertIn(END, found.model[path.stat().st_size:].decode())
        self.assertIn("tokenizer.json xxh3", self.dtrain("data", "info", "out.dtok").stdout)

    def test_the_tokens_do_not_depend_on_the_threads(self):
        path, _ = self.save("qwen2")
        text = self.write("long", "".join(VARIANTS["texts"]).replace("\0", "") * 2500)
        found = []
        for threads in (1, 5):
            self.prepare(text, "--tokenizer", path, "--threads", threads)
            found.append((self.folder / "out.dtok").read_bytes())
        self.assertEqual(*found)

    def test_many_single_words_share_one_compiled_scanner(self):
        path, _ = self.save("gpt2")
        whole = json.loads(path.read_text())
        vocab = whole["model"]["vocab"]
        # The first divides the text into segments, in which the other is searched.
        whole["added_tokens"] += [{"id": vocab[content], "content": content, "single_word": True, "lstrip": False, "rstrip": False,
                                   "normalized": content == "e", "special": False} for content in ("|", "e")]
        path.write_text(json.dumps(whole))
        count = 10000
        text = self.write("words.txt", "we e | e " * count)
        # A scanner of PCRE2 maps memory for its stack.
        run("strace", "-f", "--seccomp-bpf", "-qq", "-o", "calls", "-e", "trace=mmap", DTRAIN, "data", "prepare", text, "--tokenizer", path,
            "--threads", 1, "--output", "out.dtok", cwd=self.folder)
        tokens = read_token_file(self.folder / "out.dtok").tokens
        self.assertEqual(tokens.count(vocab["|"]), count)
        self.assertGreaterEqual(tokens.count(vocab["e"]), 2 * count)
        self.assertLess((self.folder / "calls").read_text().count("mmap("), count)

    def test_a_long_text_in_another_encoding_is_rejected_with_the_first_wrong_byte(self):
        path, _ = self.save("gpt2")
        begin = b"a text " * 200_000
        words = "однажды весною в час небывало жаркого заката".encode("cp1251").split()
        rest = b" ".join(words[(i * i // 3 + i) % len(words)] for i in range(300_000))
        self.assertGreater(len(begin + rest), 2 << 20)  # it is cut into blocks
        text = self.write("windows.txt", begin + rest)
        self.refused("data", "prepare", text, "--output", "new.dtok", "--tokenizer", path,
                     parts=["windows.txt", f"{rest[0]:#04x}", len(begin)])

    def test_errors_name_the_cause_and_leave_no_files(self):
        path, _ = self.save("gpt2")
        text = self.write("t.txt", "a text")
        prepare = ("data", "prepare", text, "--output", "new.dtok")
        for token in ("<no>", "0", "e", "12345"):  # text, tokens within texts, a number
            self.refused(*prepare, "--tokenizer", path, "--document-end", token, parts=["--document-end", "tokenizer.json", token, END])
        self.refused(*prepare, "--document-end", END, parts=["--document-end", "--tokenizer"], status=USAGE)
        (self.folder / "empty").mkdir()
        self.refused(*prepare, "--tokenizer", "empty", parts=["empty/tokenizer.json"])
        for part in ("vocab.json", "merges.txt", "tokenizer_config.json", "config.json"):
            self.write(f"model/{part}", "{}")
            self.refused(*prepare, "--tokenizer", f"model/{part}", parts=[f"model/{part}", "give model/tokenizer.json"])
            self.write(f"empty/{part}", "{}")
            self.refused(*prepare, "--tokenizer", f"empty/{part}",
                         parts=[f"empty/{part}", "save_pretrained", "SentencePiece", "docs/guide/data.md#hugging-face-tokenizers"])
        bad = self.write("bad.json", path.read_text().replace("ByteLevel", "Metaspace"))
        self.refused(*prepare, "--tokenizer", bad, parts=["bad.json", "Metaspace"])
        self.dtrain("data", "tokenizer", "train", self.write("book.txt", (GOLDEN / "text.bin").read_bytes()), "--vocab-size", 400,
                    "--output", "s.model")
        self.refused(*prepare, "--tokenizer", "s.model", "--document-end", END, parts=["--document-end", "s.model"], status=USAGE)


class Runs(TokenizerJson):
    def train(self, *flags, status=0):
        return self.dtrain(*TINY, "--steps", 2, *flags, status=status)

    def test_a_run_keeps_and_uses_the_tokenizer(self):
        path, _ = self.save("qwen2")
        self.write("book.txt", (GOLDEN / "text.bin").read_bytes())
        self.dtrain("data", "prepare", "book.txt", "--tokenizer", path, "--document-end", END, "--output", "a.dtok")
        self.train("--data", "a.dtok", "--val-fraction", 0.1, "--sample-every", 2, "--sample-prompt", "In the", "--run-dir", "run")
        run = self.folder / "run"
        self.assertEqual((run / "tokenizer.json").read_bytes(), path.read_bytes())
        self.assertEqual(json.loads((run / "tokenizer_config.json").read_text())["eos_token"], END)
        self.assertFalse((run / "tokenizer.model").exists())
        self.assertTrue(header_of(final_model(run))["dtrain.tokenizer"].startswith("tokenizer.json xxh3 "))
        found = read_token_file(self.folder / "a.dtok")
        self.assertEqual(json.loads((run / "config.json").read_text())["model"]["vocab"], found.vocab)
        lines = metrics_of(run)
        evaluation = next(line for line in lines if line.get("event") == "eval")
        self.assertAlmostEqual(evaluation["bits_per_byte"], evaluation["val_loss"] / math.log(2) * len(found.tokens) / found.num_bytes)
        self.assertTrue(next(line for line in lines if line.get("event") == "sample")["text"].startswith("In the"))
        self.generates_text()
        self.is_compared_and_replaced(path)

    def generates_text(self):
        written = self.dtrain("generate", "--from", "run", "--prompt", "In the", "--max-tokens", 40, "--seed", 3).stdout
        self.assertTrue(written.startswith("In the"))
        self.write("tokenizer.model", "pieces")
        self.dtrain("checkpoint", "export", "run", "exported.safetensors")
        self.assertEqual((self.folder / "tokenizer.json").read_bytes(), (self.folder / "run" / "tokenizer.json").read_bytes())
        again = self.dtrain("generate", "--from", "exported.safetensors", "--prompt", "In the", "--max-tokens", 40, "--seed", 3).stdout
        self.assertEqual(written, again)
        self.is_damaged()
        (self.folder / "tokenizer.json").unlink()
        error_line(self.dtrain("generate", "--from", "exported.safetensors", status=CHECKPOINT).stderr, "exported.safetensors",
                   "tokenizer.json")

    def is_damaged(self):
        own = self.folder / "run" / "tokenizer.json"
        content = own.read_bytes()
        own.write_text("junk")
        line = error_line(self.dtrain("generate", "--from", "run/checkpoints/step-2", status=DATA).stderr, "run/tokenizer.json")
        self.assertNotIn("dtrain data tokenizer train", line)
        own.write_bytes(content)

    def test_a_prompt_without_tokens_is_rejected_before_training(self):
        path, _ = self.save("gpt2")
        whole = json.loads(path.read_text())
        newline = {"type": "Split", "pattern": {"String": "\n"}, "behavior": "Removed", "invert": False}
        path.write_text(json.dumps({**whole, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [newline, whole["pre_tokenizer"]]}}))
        self.prepare(self.write("book.txt", (GOLDEN / "text.bin").read_bytes()), "--tokenizer", path)
        result = self.train("--data", "out.dtok", "--sample-every", 2, "--run-dir", "run", status=DATA)
        error_line(result.stderr, "--sample-prompt")
        self.assertFalse((self.folder / "run" / "metrics.jsonl").exists())

    def is_compared_and_replaced(self, path):
        other, _ = self.save("gpt2", folder="other")
        self.dtrain("data", "prepare", "book.txt", "--tokenizer", other, "--output", "b.dtok")
        error_line(self.dtrain("evaluate", "--from", "run", "--data", "b.dtok", status=DATA).stderr, "b.dtok")
        error_line(self.train("--data", "b.dtok", "--init-from", "run", "--run-dir", "new", status=DATA).stderr, "--init-from", "b.dtok")
        # Without the token between documents, the tokenizer is the same.
        self.dtrain("data", "prepare", "book.txt", "--tokenizer", path, "--output", "c.dtok")
        self.dtrain("evaluate", "--from", "run", "--data", "c.dtok")
        mine = self.folder / "run" / "tokenizer_config.json"
        own = mine.read_text()
        mine.write_text("{}")
        error_line(self.train("--data", "b.dtok", "--overwrite", "--run-dir", "run", status=USAGE).stderr, "run/tokenizer_config.json")
        self.assertEqual((self.folder / "run" / "tokenizer.json").read_bytes(), path.read_bytes())
        mine.write_text(own)
        self.train("--data", "b.dtok", "--overwrite", "--run-dir", "run")
        self.assertEqual((self.folder / "run" / "tokenizer.json").read_bytes(), other.read_bytes())
        self.assertNotIn("eos_token", json.loads((self.folder / "run" / "tokenizer_config.json").read_text()))
        (self.folder / "mine").mkdir()
        self.write("mine/tokenizer.model", "precious")
        error_line(self.train("--data", "b.dtok", "--run-dir", "mine", status=USAGE).stderr, "mine/tokenizer.model", "move it")


if __name__ == "__main__":
    unittest.main()
