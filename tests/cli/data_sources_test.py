"""What `dtrain data prepare` reads: texts, JSON lines, compressed ones, WikiText, and other trainers' tokens; and what bad ones get."""

import fcntl
import gzip
import json
import os
import pty
import signal
import struct
import subprocess
import termios
import unittest
import zlib

from data_harness import DataTest
from dtrain_harness import DATA, DTRAIN, GOLDEN, SOURCE, USAGE, run
from token_file import read_token_file

TEXT = (GOLDEN / "text.bin").read_bytes()
ARTICLE = " \n = {} = \n \n {} \n = = Section = = \n \n More of it . \n"
WIKITEXT = ARTICLE.format("First", "Words of article one") + ARTICLE.format("Second", "Others , = x =")
SECOND_BEGINS = WIKITEXT.index(" = Second")


def zstd(content):
    return subprocess.run(["zstd", "-q", "-c"], input=content, capture_output=True, check=True).stdout


def little(tokens, code="H"):
    return struct.pack(f"<{len(tokens)}{code}", *tokens)


def llm_c(tokens, magic=20240520, version=1, code="H"):
    return struct.pack("<256i", magic, version, len(tokens), *[0] * 253) + little(tokens, code)


class Sources(DataTest):
    def refused(self, *arguments, **expected):
        super().refused("data", "prepare", *arguments, "--output", "new.dtok", **expected)


class Texts(Sources):
    def test_compressed_texts_are_their_texts(self):
        plain = self.prepare(self.write("t", TEXT))
        for path in (self.write("t.gz", gzip.compress(TEXT)), self.write("t.zst", zstd(TEXT))):
            self.assertEqual(self.prepare(path), plain)
        self.assertEqual((bytes(plain.tokens), plain.num_bytes, plain.document_ends), (TEXT, len(TEXT), [len(TEXT)]))

    def test_a_byte_order_mark_is_no_part_of_a_text(self):
        plain = self.prepare(self.write("t", TEXT))
        self.assertEqual(self.prepare(self.write("marked", b"\xef\xbb\xbf" + TEXT)), plain)
        marked = self.write("marked.jsonl", b"\xef\xbb\xbf" + b'{"text": "one"}\n')
        self.assertEqual(bytes(self.prepare(marked, "--field", "text").tokens), b"one\n")

    def test_hidden_files_of_a_folder_are_left_out_unless_named(self):
        for name, text in (("texts/a.txt", b"seen"), ("texts/.DS_Store", b"\0binary"), ("texts/.git/config", b"hidden"), (".one/b", b"named")):
            self.write(name, text)
        self.assertEqual(bytes(self.prepare("texts").tokens), b"seen")
        self.assertEqual(bytes(self.prepare("texts/.git/config", "texts/.git", ".one").tokens), b"hiddenhiddennamed")
        self.refused("texts/.DS_Store", parts=[".DS_Store"])

    def test_info_tells_what_a_file_holds(self):
        self.prepare(self.write("t", TEXT))
        for name, documents in (("out.dtok", "1"), ("t", "unknown")):
            facts = dict(line.split(maxsplit=1) for line in self.dtrain("data", "info", name).stdout.splitlines()
                         if line.split()[0] in ("file", "tokens", "vocabulary", "documents"))
            self.assertEqual(facts, {"file": name, "tokens": str(len(TEXT)), "vocabulary": "256", "documents": documents})

    def test_the_bytes_do_not_depend_on_the_threads(self):
        text = self.write("t", TEXT * 40)
        lines = self.write("l.jsonl", "".join(json.dumps({"text": f"line {i} " * (i % 50 + 1)}) + "\n" for i in range(9000)))
        for arguments in ((text,), (lines, "--field", "text")):
            self.prepare(*arguments, "--threads", 1)
            one = (self.folder / "out.dtok").read_bytes()
            self.prepare(*arguments, "--threads", 7)
            self.assertEqual((self.folder / "out.dtok").read_bytes(), one)

    def test_lines_of_json_are_documents(self):
        content = "".join(json.dumps(line) + "\n" for line in ({"t": "one", "n": 1}, {"t": "zw\u00f6lf\n"}, {"t": ""}))
        for name, bytes_of in (("a.jsonl", str.encode), ("a.jsonl.gz", lambda text: gzip.compress(text.encode())),
                               ("a.jsonl.zst", lambda text: zstd(text.encode()))):
            found = self.prepare(self.write(name, bytes_of(content)), "--field", "t")
            self.assertEqual([bytes(document).decode() for document in found.documents], ["one\n", "zw\u00f6lf\n"])

    def test_a_bar_is_drawn_on_a_terminal_alone(self):
        text = self.write("t", TEXT)
        result = self.dtrain("data", "prepare", text, "--output", "a.dtok")
        self.assertEqual(result.stderr, "")
        parent, child = pty.openpty()
        subprocess.run([DTRAIN, "data", "prepare", text, "--output", "b.dtok"], cwd=self.folder, stderr=child,
                       stdout=subprocess.DEVNULL, check=True, timeout=60)
        os.close(child)
        drawn = os.read(parent, 4096).decode()
        os.close(parent)
        self.assertIn("100 %", drawn)
        self.assertTrue(drawn.endswith("\r\x1b[K"), drawn)

    def test_the_bar_fits_a_narrow_window(self):
        text = self.write("t", TEXT)
        for columns in (30, 50, 200):
            parent, child = pty.openpty()
            fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            subprocess.run([DTRAIN, "data", "prepare", text, "--output", "b.dtok", "--overwrite"], cwd=self.folder, stderr=child,
                           stdout=subprocess.DEVNULL, check=True, timeout=60)
            os.close(child)
            drawn = os.read(parent, 65536).decode().split("\r\x1b[K")
            os.close(parent)
            self.assertIn(" %", drawn[1])
            self.assertLess(max(map(len, drawn)), columns)

    def test_nothing_is_left_when_a_signal_ends_it(self):
        self.write("t", TEXT * 1500)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process = subprocess.Popen([DTRAIN, "data", "prepare", "t", "--output", "t.dtok"], cwd=self.folder)
            while not list(self.folder.glob("t.dtok.tmp-*")):
                self.assertIsNone(process.poll())
            process.send_signal(number)
            self.assertEqual(process.wait(timeout=60), -number)
            self.assertEqual([path.name for path in self.folder.iterdir()], ["t"])

    def test_what_is_wrong_is_named_and_nothing_is_left(self):
        packed, small = gzip.compress(TEXT), zstd(TEXT)
        self.refused(self.write("cut.gz", packed[:20000]), parts=["cut.gz", "truncated", "byte 20000"])
        held = len(zlib.decompressobj(31).decompress(packed[:20000]))
        self.refused(self.write("cut.gz", packed[:20000]), parts=[f"after {held} bytes"])
        self.refused(self.write("cut.zst", small[:20000]), parts=["cut.zst", "truncated", "byte 20000"])
        lines = self.write("l.jsonl", '{"text": "x"}\n{"body": "y"}\n')
        self.refused(lines, "--field", "text", parts=["l.jsonl", "line 2", "no field \"text\"", "body"])
        self.refused(lines, parts=["--field"], status=USAGE)
        self.refused(self.write("in.gz", gzip.compress(b"\x7fELF\0\0")), parts=["in.gz", "a program"])
        self.refused(lines, "--field", "text", "--dataset", "wikitext", parts=["--field"], status=USAGE)
        self.refused(lines, "--dataset", "wiki", parts=["--dataset", "wikitext"], status=USAGE)
        self.refused(lines, "--threads", 0, parts=["--threads"], status=USAGE)


class WikiText(Sources):
    def test_articles_are_documents_and_words_are_counted(self):
        found = self.prepare(self.write("wiki.test.raw", WIKITEXT), "--dataset", "wikitext")
        self.assertEqual(bytes(found.tokens).decode(), WIKITEXT)
        # The blank line before a title ends the article before it.
        self.assertEqual(found.document_ends, [SECOND_BEGINS, len(WIKITEXT)])
        # By hand: what stands between spaces, and one for each of the 7 lines of an article.
        self.assertEqual(found.num_words, (3 + 4 + 5 + 4 + 7) + (3 + 5 + 5 + 4 + 7))

    def test_a_folder_gives_a_file_for_each_part(self):
        for part in ("train", "valid", "test"):
            self.write(f"raw/wiki.{part}.raw", WIKITEXT + part)
        self.dtrain("data", "prepare", "--dataset", "wikitext", "raw", "--output", "made")
        for part in ("train", "valid", "test"):
            self.assertEqual(bytes(read_token_file(self.folder / "made" / f"{part}.dtok").tokens).decode(), WIKITEXT + part)

    def test_one_bad_part_leaves_none(self):
        self.write("raw/wiki.train.raw", WIKITEXT)
        self.write("raw/wiki.valid.raw", b"\x7fELF" + bytes(100))
        self.refused("--dataset", "wikitext", "raw", parts=["wiki.valid.raw"])
        self.write("empty/x", "")
        self.refused("--dataset", "wikitext", "empty", parts=["wiki.train.raw", "get_wikitext.sh"])


    def test_an_archive_of_another_checksum_is_not_unpacked(self):
        archive = self.write("wikitext.zip", "not the archive")
        result = run(SOURCE / "scripts" / "get_wikitext.sh", 2, "raw", cwd=self.folder, status=DATA,
                     environment={"WIKITEXT_URL": archive.as_uri()})
        self.assertRegex(result.stderr, r"\Aget_wikitext.sh: error: [^\n]*SHA-256[^\n]*\n\Z")
        self.assertEqual(list((self.folder / "raw").iterdir()), [])
        for words in ((), (2,), (3, "raw"), (2, "raw", "more")):
            result = run(SOURCE / "scripts" / "get_wikitext.sh", *words, cwd=self.folder, status=USAGE)
            self.assertEqual(result.stderr, "get_wikitext.sh: error: usage: get_wikitext.sh 2|103 FOLDER\n")


class OtherTrainers(Sources):
    def test_files_of_llm_c_are_converted(self):
        found = self.prepare(self.write("a.bin", llm_c([50256, 1, 2, 50256, 3])))
        self.assertEqual((found.vocab, found.tokens, found.document_ends), (50257, [50256, 1, 2, 50256, 3], [3, 5]))
        found = self.prepare(self.write("b.bin", llm_c([128000, 7, 128001], 20240801, 7, "I")))
        self.assertEqual((found.vocab, found.tokens, found.document_ends), (128256, [128000, 7, 128001], [3]))

    def test_files_of_nanogpt_are_converted(self):
        tokens = [1, 2, 50256, 300, 4, 50256, 5] * 9
        found = self.prepare(self.write("train.bin", little(tokens)))
        self.assertEqual((found.vocab, found.tokens, found.document_ends[:3]), (50257, tokens, [3, 6, 10]))
        found = self.prepare(self.write("all.bin", little([0, 60000, 65535] * 30)), "--vocab", 65536)
        self.assertEqual((found.vocab, found.tokens), (65536, [0, 60000, 65535] * 30))
        letters = [i % 65 for i in range(400)]
        found = self.prepare(self.write("letters.bin", little(letters)), "--vocab", 65)
        self.assertEqual((found.vocab, found.tokens, found.tokenizer), (65, letters, 0))

    def test_an_assumed_vocabulary_is_told_with_the_highest_token(self):
        letters = self.write("letters.bin", little([i % 65 for i in range(400)]))
        result = self.dtrain("data", "prepare", letters, "--output", "a.dtok")
        self.assertRegex(result.stderr, r"\A[^\n]*a\.dtok: vocabulary 50257 [^\n]* 64;[^\n]* --vocab N, at least 65\n\Z")
        result = self.dtrain("data", "prepare", letters, "--vocab", 65, "--output", "b.dtok")
        self.assertEqual(result.stderr, "")
        result = self.dtrain("data", "prepare", self.write("full.bin", llm_c([50256, 1, 2])), "--output", "c.dtok")
        self.assertRegex(result.stderr, r"\A[^\n]*vocabulary 50257 [^\n]* 50256\n\Z")
        self.assertEqual(self.dtrain("data", "prepare", self.write("t", TEXT), "--output", "d.dtok").stderr, "")

    def test_what_is_wrong_is_named_and_nothing_is_left(self):
        good = llm_c(range(1000))
        self.refused(self.write("s.bin", struct.pack(">256i", 20240520, 1, 5, *[0] * 253)), parts=["s.bin", "byte-swapped"])
        self.refused(self.write("n.bin", struct.pack(">100H", *range(1000, 1100))), parts=["n.bin", "byte-swapped"])
        letters = [i % 65 for i in range(400)]
        self.refused(self.write("b.bin", struct.pack(">400H", *letters)), "--vocab", 65, parts=["b.bin", "byte-swapped"])
        for code in "IQ":
            self.refused(self.write("w.bin", little(letters, code)), parts=["w.bin", "32- or 64-bit", "'<u2'"])
        self.refused(self.write("v.bin", llm_c([1], version=3)), parts=["v.bin", "version 3"])
        self.refused(self.write("c.bin", good[:-10]), parts=["c.bin", "truncated", "1000 tokens"])
        self.refused(self.write("o.bin", little(range(100, 300))), "--vocab", 250,
                     parts=["o.bin", "token 250", "position 150", "--vocab"])
        self.refused(self.write("x.bin", bytes(range(256)) * 4), parts=["x.bin", "binary"])
        self.refused(self.write("g.bin", good), self.write("t.txt", "text"), parts=["g.bin", "t.txt"], status=USAGE)
        self.refused("g.bin", "--field", "text", parts=["--field"], status=USAGE)
        self.refused("t.txt", "--vocab", 300, parts=["--vocab"], status=USAGE)


if __name__ == "__main__":
    unittest.main()
