"""`dtrain data prepare` and `dtrain data baseline`, and what bad data gets, as a user meets them."""

import collections
import json
import math
import random
import re
import struct
import unittest

from data_harness import DataTest
from dtrain_harness import SOURCE, USAGE, xxh3


def documented_writer():
    """write_token_file() as the format's page shows it."""
    page = (SOURCE / "docs" / "formats" / "tokens.md").read_text(encoding="utf-8")
    names = {}
    exec(re.search(r"^import struct\n\ndef write_token_file.*?\n(?=\S)", page, re.DOTALL | re.MULTILINE).group(), names)
    return names["write_token_file"]


def some_text(num_bytes):
    words = "in the beginning was a word and then there were many more of them , said she .\n".split(" ")
    chooser = random.Random(7)
    text = ""
    while len(text) < num_bytes:
        text += chooser.choice(words) + " "
    return text[:num_bytes].encode()


class Ngrams:
    """Interpolated Witten-Bell, counted with dictionaries."""

    def __init__(self, text):
        self.followers = [collections.defaultdict(collections.Counter) for _ in range(3)]
        for length, table in enumerate(self.followers):
            for i in range(length, len(text)):
                table[text[i - length:i]][text[i]] += 1

    def probability(self, context, byte):
        lower = self.probability(context[1:], byte) if context else 1 / 256
        seen = self.followers[len(context)].get(context)
        if not seen:
            return lower
        return (seen[byte] + len(seen) * lower) / (sum(seen.values()) + len(seen))

    def loss(self, text, length, num_samples, order):
        total = 0.0
        for i in range(num_samples * length):
            seen = min(i % length + 1, order - 1)
            total -= math.log(self.probability(text[i + 1 - seen:i + 1], text[i + 1]))
        return total / (num_samples * length)


class Case(DataTest):
    def succeeds(self, *arguments):
        result = self.dtrain(*arguments)
        self.assertEqual(result.stderr, "")
        return result.stdout


def fnv1a(content):
    checksum = 0xCBF29CE484222325
    for byte in content:
        checksum = (checksum ^ byte) * 0x100000001B3 % 2**64
    return checksum


class Prepare(Case):
    def test_a_folder_becomes_the_documented_token_file(self):
        self.write("in/b.txt", b"second")
        self.write("in/a/c.txt", b"first ")
        output = self.folder / "out.tok"
        printed = self.succeeds("data", "prepare", self.folder / "in", "--output", output)
        self.assertIn("12 tokens from 2 files, 2 documents", printed)
        first = self.folder / "first.tok"
        documented_writer()(first, b"first second", 256, width=1)
        # Version 3 holds more behind the header, and a table of documents behind the tokens.
        header = first.read_bytes()[:8] + struct.pack("<I", 3) + first.read_bytes()[12:32]
        tail = bytes(-(104 + 12) % 8) + struct.pack("<QQ", 6, 12)
        details = struct.pack("<QQQQQQQ", xxh3(b"first second"), 12, 0, 2, 0, 1, xxh3(tail))
        self.assertEqual(output.read_bytes(), header + struct.pack("<Q", fnv1a(header)) + details +
                         struct.pack("<Q", fnv1a(details)) + b"first second" + tail)

    def test_an_existing_file_is_kept_without_overwrite(self):
        text = self.write("text", b"some text")
        output = self.write("out.tok", b"precious")
        self.refused("data", "prepare", text, "--output", output, parts=[output, "--overwrite"], status=USAGE)
        self.assertEqual(output.read_bytes(), b"precious")
        self.succeeds("data", "prepare", text, "--output", output, "--overwrite")
        self.assertIn(b"some text", output.read_bytes())


class Baseline(Case):
    def test_losses_are_those_of_an_independent_count(self):
        text = some_text(6000)
        path = self.write("text", text)
        cut = len(text) - int(len(text) * 0.2)
        oracle = Ngrams(text[:cut])
        there_are = (len(text) - cut - 1) // 32
        for asked, samples in ((3, [0, there_are // 3, 2 * there_are // 3]), (1000, range(there_are)), ("all", range(there_are))):
            result = json.loads(self.succeeds("data", "baseline", "--data", path, "--val-fraction", 0.2, "--seq-len", 32,
                                              "--eval-sequences", asked))
            self.assertEqual(result["targets"], len(samples) * 32)
            for name, order in (("bigram", 2), ("trigram", 3)):
                pieces = [oracle.loss(text[cut + 32 * i:cut + 32 * i + 33], 32, 1, order) for i in samples]
                self.assertAlmostEqual(result[name], sum(pieces) / len(pieces), places=10)

    def test_a_token_file_gives_what_its_text_gives(self):
        text = some_text(3000)
        tokens = self.folder / "wide.tok"
        documented_writer()(tokens, text, 256, width=2)
        flags = ["--val-fraction", 0.2, "--seq-len", 16, "--microbatch", 1]
        self.assertEqual(self.succeeds("data", "baseline", "--data", tokens, *flags),
                         self.succeeds("data", "baseline", "--data", self.write("text", text), *flags))


class BadData(Case):
    """A run's inputs must be found before anything starts, and leave no run folder."""

    def train_refused(self, *parts, path, flags=()):
        self.refused("--data", path, "--run-dir", "run", "--seq-len", 16, "--microbatch", 1, "--steps", 1, *flags,
                     parts=[path, *parts])

    def token_file(self, tokens, vocab=256):
        path = self.folder / "tokens.tok"
        documented_writer()(path, tokens, vocab)
        return path

    def test_missing_empty_and_folder(self):
        self.train_refused("missing", path=self.folder / "missing")
        self.train_refused("is empty", path=self.write("empty", b""))
        self.train_refused("directory", path=self.folder)

    def test_truncated_and_foreign(self):
        whole = self.token_file(range(100)).read_bytes()
        self.train_refused("truncated", "99 of 100", path=self.write("cut", whole[:-1]))
        self.train_refused("truncated", path=self.write("cut", whole[:20]))
        self.train_refused("version 9", path=self.write("new", whole[:8] + struct.pack("<I", 9) + whole[12:]))
        self.train_refused("gzip-compressed", path=self.write("text.gz", b"\x1f\x8b\x08" + b"x" * 100))
        self.train_refused("safetensors", path=SOURCE / "tests" / "golden" / "mini.safetensors")

    def test_token_outside_the_vocabulary(self):
        self.train_refused("token 256", "position 50", path=self.token_file([5] * 50 + [256] + [5] * 50))
        self.train_refused("vocabulary of 300", "256", path=self.token_file([5] * 100, vocab=300), flags=["--vocab", 256])
        self.train_refused("255", path=self.write("text", b"x" * 100), flags=["--vocab", 255])

    def test_sequence_longer_than_the_data(self):
        self.train_refused("16 tokens", "--seq-len", path=self.write("short", b"x" * 16))
        self.train_refused("for validation", path=self.write("text", b"x" * 100), flags=["--val-fraction", 0.1])


if __name__ == "__main__":
    unittest.main()
