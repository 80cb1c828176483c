"""SentencePiece: tokens compared with those of its own programs, models of ours, and what a wrong one gets."""

import json
import random
import subprocess
import unittest

from data_harness import DataTest
from dtrain_harness import DTRAIN, GOLDEN, USAGE, run
from token_file import read_token_file

TEXT = (GOLDEN / "text.bin").read_text()
LINES = [line for line in TEXT.splitlines() if line]
SENTENCEPIECE = 2


def spm(program, *arguments, text=None):
    return subprocess.run([f"spm_{program}", "--minloglevel=2", *map(str, arguments)], input=text, capture_output=True, text=True,
                          check=True).stdout


class Tokenizers(DataTest):
    def refused(self, *arguments, **expected):
        super().refused("data", *arguments, **expected)

    def our_model(self, *flags, name="ours.model", vocab=700):
        self.dtrain("data", "tokenizer", "train", self.write("book.txt", TEXT), "--vocab-size", vocab, "--output", name, *flags)
        return self.folder / name

    def test_tokens_of_each_document_are_those_of_spm_encode(self):
        text = self.write("book.txt", TEXT)
        documents = self.write("lines.jsonl", "".join(json.dumps({"text": line}) + "\n" for line in LINES))
        for flags in (["--model_type=unigram"], ["--model_type=bpe", "--byte_fallback", "--normalization_rule_name=identity"]):
            spm("train", f"--input={text}", f"--model_prefix={self.folder / 'theirs'}", "--vocab_size=600", *flags)
            model = self.folder / "theirs.model"
            expected = spm("encode", f"--model={model}", "--output_format=id", text="\n".join(LINES) + "\n").splitlines()
            found = self.prepare(documents, "--field", "text", "--tokenizer", model)
            end = 2  # of a sentence, by spm_train's defaults
            self.assertEqual(found.documents, [[*map(int, line.split()), end] for line in expected])
            self.assertEqual((found.vocab, found.tokenizer, found.model), (600, SENTENCEPIECE, model.read_bytes()))
            self.assertEqual(found.num_bytes, len("".join(LINES).encode()))

    def test_the_report_counts_every_byte_of_the_text(self):
        book = self.write("lines.txt", "\n\n" + TEXT + "\n\n")
        size = book.stat().st_size
        result = self.dtrain("data", "tokenizer", "train", book, "--vocab-size", 700, "--output", "lines.model")
        self.assertIn(f"trained on {size} of {size} bytes", result.stdout)

    def test_a_model_of_ours_gives_back_every_text(self):
        for flags in ((), ("--type", "unigram")):
            model = self.our_model(*flags, "--overwrite")
            text = TEXT[:5000] + "  two\tspaces \u65e5\u672c\u8a9e \U0001f600\n\n\nend \n"
            found = self.prepare(self.write("t", text), "--tokenizer", model)
            self.assertEqual(found.tokens.pop(), 1)  # the end of the document
            self.assertEqual(spm("decode", f"--model={model}", "--input_format=id", text=" ".join(map(str, found.tokens)) + "\n"),
                             text + "\n")

    def test_the_same_texts_give_the_same_model(self):
        self.assertEqual(self.our_model(name="a.model").read_bytes(), self.our_model(name="b.model").read_bytes())

    def test_the_bytes_do_not_depend_on_the_threads(self):
        model, text = self.our_model(), self.write("long", TEXT * 60)
        found = []
        for threads in (1, 5):
            self.prepare(text, "--tokenizer", model, "--threads", threads)
            found.append((self.folder / "out.dtok").read_bytes())
        self.assertEqual(*found)

    def test_a_text_without_spaces_takes_little_memory(self):
        signs = random.Random(7)
        text = "".join(chr(0x4E00 + signs.randrange(3000)) for _ in range(700_000))
        model, book = self.our_model(), self.write("signs.txt", text)
        run("prlimit", f"--data={250 << 20}", DTRAIN, "data", "prepare", book, "--tokenizer", model, "--output", "signs.dtok",
            "--threads", 2, cwd=self.folder)
        self.assertEqual(read_token_file(self.folder / "signs.dtok").num_bytes, len(text.encode()))

    def test_what_is_wrong_is_named_and_nothing_is_left(self):
        model, book = self.our_model(), self.folder / "book.txt"
        bad = self.write("bad.txt", TEXT.encode() + b"caf\xe9 " + TEXT.encode())
        out = ("--output", "new.dtok")
        self.refused("prepare", bad, "--tokenizer", model, *out, parts=["bad.txt", "0xe9", f"offset {len(TEXT) + 3}", "iconv"])
        self.dtrain("data", "prepare", bad, "--output", "bytes.dtok")
        self.refused("prepare", book, "--tokenizer", book, *out, parts=["book.txt", "SentencePiece"])
        self.refused("prepare", book, "--tokenizer", "missing", *out, parts=["missing"])
        train = ("tokenizer", "train", book, "--output", "new.model", "--vocab-size")
        self.refused(*train, 100000, parts=["--vocab-size 100000", "too high"], status=USAGE)
        self.refused(*train, 100, parts=["--vocab-size", "100", "260"], status=USAGE)
        many = self.write("many.txt", "".join(map(chr, range(0x400, 0x600))))
        result = self.dtrain("data", "tokenizer", "train", many, "--output", "new.model", "--vocab-size", 300, status=USAGE)
        self.assertRegex(result.stderr, r"characters .*\d+$")
        self.refused(*train, 500, "--type", "word", parts=["--type", "bpe"], status=USAGE)
        self.refused("tokenizer", "train", book, "--output", "ours.model", "--vocab-size", 500, parts=["--overwrite"], status=USAGE)
        self.refused("tokenizer", "train", bad, "--output", "new.model", "--vocab-size", 500, parts=["bad.txt", "UTF-8"])
        self.refused("tokenizer", "trian", parts=["train"], status=USAGE)


if __name__ == "__main__":
    unittest.main()
