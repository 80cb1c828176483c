"""Inputs of `dtrain data prepare`: texts, JSON lines, compressed files, WikiText, other trainers' tokens; and errors for bad ones."""

import collections
import fcntl
import gzip
import io
import json
import os
import pickle
import pty
import random
import re
import signal
import sqlite3
import struct
import subprocess
import tarfile
import termios
import unittest
import zipfile

from data_harness import DataTest, read_token_file
from dtrain_harness import DATA, DTRAIN, GOLDEN, SOURCE, USAGE, run, terminal_output
from messages import error_line, lines_naming

TEXT = (GOLDEN / "text.bin").read_bytes()
LINES = [line for line in TEXT.decode().splitlines() if line]
SENTENCEPIECE = 2
ARTICLE = " \n = {} = \n \n {} \n = = Section = = \n \n More of it . \n"
WIKITEXT = ARTICLE.format("First", "Words of article one") + ARTICLE.format("Second", "Others , = x =")


def little(tokens, code="H"):
    return struct.pack(f"<{len(tokens)}{code}", *tokens)


def llm_c(tokens, magic=20240520, version=1, code="H"):
    return struct.pack("<256i", magic, version, len(tokens), *[0] * 253) + little(tokens, code)


def numpy_file(tokens, descr="<u2", shape=None, order="False", code="H", version=1):
    shape = f"({len(tokens)},)" if shape is None else shape
    header = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}".ljust(100) + "\n"
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + length + header.encode() + little(tokens, code)


def megatron_index(lengths, documents, dtype=8, width=2, version=1):
    begins = [width * sum(lengths[:i]) for i in range(len(lengths))]
    return (b"MMIDIDX\0\0" + struct.pack("<QBQQ", version, dtype, len(lengths), len(documents))
            + struct.pack(f"<{len(lengths)}i{len(lengths)}q{len(documents)}q", *lengths, *begins, *documents))


class Sources(DataTest):
    def refused(self, *arguments, **expected):
        super().refused("data", "prepare", *arguments, "--output", "new.dtok", **expected)


class Texts(Sources):
    def test_a_byte_order_mark_is_no_part_of_a_text(self):
        plain = self.prepare(self.write("t", TEXT))
        self.assertEqual(self.prepare(self.write("marked", b"\xef\xbb\xbf" + TEXT)), plain)
        marked = self.write("marked.jsonl", b"\xef\xbb\xbf" + b'{"text": "one"}\n')
        self.assertEqual(bytes(self.prepare(marked, "--field", "text").tokens), b"one\n")

    def test_markup_is_taken_as_text_with_a_note(self):
        for name, is_noted in (("table.csv", True), ("texts.json", True), ("table.txt", False)):
            result = self.dtrain("data", "prepare", self.write(name, "a,b\n"), "--output", "out.dtok", "--overwrite")
            self.assertEqual(bool(lines_naming(result.stderr, "markup", name)), is_noted, result.stderr)
            self.assertEqual(bytes(read_token_file(self.folder / "out.dtok").tokens), b"a,b\n")

    def test_hidden_files_of_a_folder_are_skipped_unless_named(self):
        for name, text in (("texts/a.txt", b"seen"), ("texts/.DS_Store", b"\0binary"), ("texts/.git/config", b"hidden"), (".one/b", b"named")):
            self.write(name, text)
        self.assertEqual(bytes(self.prepare("texts").tokens), b"seen")
        self.assertEqual(bytes(self.prepare("texts/.git/config", "texts/.git", ".one").tokens), b"hidden\nhidden\nnamed\n")
        self.refused("texts/.DS_Store", parts=[".DS_Store"])

    def test_texts_of_a_folder_are_separated_like_documents_of_json(self):
        self.write("in/a", "one")
        self.write("in/b", "two\n")
        self.write("lines.jsonl", '{"text": "one"}\n{"text": "two\\n"}\n')
        texts, documents = self.prepare("in"), self.prepare("lines.jsonl", "--field", "text")
        self.assertEqual(texts, documents)
        self.assertEqual((bytes(texts.tokens), texts.document_ends, texts.num_bytes), (b"one\ntwo\n", [4, 8], 8))
        self.dtrain("data", "tokenizer", "train", self.write("book.txt", TEXT), "--vocab-size", 400, "--output", "t.model")
        texts, documents = (self.prepare(*inputs, "--tokenizer", "t.model") for inputs in (["in"], ["lines.jsonl", "--field", "text"]))
        self.assertEqual(texts, documents)

    def test_links_of_a_folder_are_followed_and_skipped_entries_reported(self):
        """A Hugging Face cache consists of links."""
        self.write("cache/blobs/5f3a", TEXT)
        (self.folder / "cache/snapshots/main").mkdir(parents=True)
        (self.folder / "cache/snapshots/main/data.txt").symlink_to("../../blobs/5f3a")
        (self.folder / "cache/snapshots/main/gone.txt").symlink_to("../../blobs/gone")
        (self.folder / "cache/snapshots/main/same.txt").symlink_to("data.txt")
        self.write("cache/snapshots/.lock", "hidden")
        os.mkfifo(self.folder / "cache/snapshots/fifo")
        result = self.dtrain("data", "prepare", "cache/snapshots", "--output", "out.dtok")
        self.assertEqual(bytes(read_token_file(self.folder / "out.dtok").tokens), TEXT)
        (line,) = result.stderr.splitlines()
        for what in ("link followed", "link to", "broken", "hidden", "special"):
            self.assertRegex(line, rf"\b1 {what}")
        for name in ("data.txt", "same.txt"):
            (self.folder / "cache/snapshots/main" / name).unlink()
        self.refused("cache/snapshots", parts=["cache/snapshots", "1 broken"], status=USAGE)

    def test_files_of_other_programs_are_rejected_by_content(self):
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w"):
            pass
        table = sqlite3.connect(self.folder / "t.txt")
        table.execute("create table texts (text)")
        table.commit()
        table.close()
        contents = [pickle.dumps(["text"], protocol=protocol) for protocol in (2, 3, 4, 5)]
        contents += [archive.getvalue(), (self.folder / "t.txt").read_bytes(), b"PAR1\x15\x04", b"ARROW1\0\0", b"\xff\xff\xff\xff\x88\x01\0\0"]
        for content in contents:
            for flags in ((), ("--field", "text")):
                self.refused(self.write("t.txt", content), *flags, parts=["t.txt", re.compile("JSON lines|unpack")])
                self.refused(self.write("t.gz", gzip.compress(content)), *flags, parts=["t.gz", re.compile("JSON lines|unpack")])

    def test_files_that_hold_no_text_are_refused_though_no_byte_is_zero(self):
        for content in (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", b"GIF89a\x80", b"Obj\x01\x04\x14avro",
                        pickle.dumps(["a"], protocol=0), b"{\\rtf1\\ansi text}", b"%!PS-Adobe-3.0\n"):
            self.refused(self.write("t.txt", content), parts=["t.txt"])
        header = b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'.ljust(64)
        self.refused(self.write("m.bin", struct.pack("<Q", 64) + header + bytes(16)), parts=["m.bin", "safetensors"])

    def test_a_text_that_is_not_utf_8_is_taken_byte_by_byte_with_a_note(self):
        for name, content in (("latin.txt", "Größe".encode("latin-1")), ("packed.gz", gzip.compress(b"a\xff"))):
            self.write(name, content)
            result = self.dtrain("data", "prepare", name, "--output", "o.dtok", "--overwrite")
            (line,) = result.stderr.splitlines()
            self.assertEqual(lines_naming(line, name, "UTF-8", "iconv"), [line])
        self.assertEqual(bytes(self.prepare("latin.txt").tokens), "Größe".encode("latin-1"))

    def test_an_archive_of_tar_is_told_from_a_text_with_its_mark(self):
        for layout in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT):
            archive = io.BytesIO()
            with tarfile.open(fileobj=archive, mode="w", format=layout) as tar:
                tar.addfile(tarfile.TarInfo("a.txt"))
            self.refused(self.write("t.txt", archive.getvalue()), parts=["t.txt", "unpack"])
        text = b" " * 256 + b"gustar words"
        self.assertEqual(bytes(self.prepare(self.write("t.txt", text)).tokens), text)

    def test_info_prints_the_content_of_a_file(self):
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

    def test_a_progress_bar_appears_only_on_a_terminal_and_fits_its_width(self):
        text = self.write("t", TEXT)
        self.assertEqual(self.dtrain("data", "prepare", text, "--output", "a.dtok").stderr, "")
        for columns in (30, 200):
            parent, child = pty.openpty()
            fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            subprocess.run([DTRAIN, "data", "prepare", text, "--output", "b.dtok", "--overwrite"], cwd=self.folder, stderr=child,
                           stdout=subprocess.DEVNULL, check=True, timeout=60)
            os.close(child)
            drawn = terminal_output(parent).decode()
            self.assertIn("100 %", drawn)
            self.assertTrue(drawn.endswith("\r\x1b[K"), drawn)
            self.assertLess(max(map(len, drawn.split("\r\x1b[K"))), columns)

    def test_a_signal_leaves_no_files(self):
        self.write("t", TEXT * 1500)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process = subprocess.Popen([DTRAIN, "data", "prepare", "t", "--output", "t.dtok"], cwd=self.folder)
            while not list(self.folder.glob("t.dtok.tmp-*")):
                self.assertIsNone(process.poll())
            process.send_signal(number)
            self.assertEqual(process.wait(timeout=60), -number)
            self.assertEqual([path.name for path in self.folder.iterdir()], ["t"])

    def test_errors_name_the_cause_and_leave_no_files(self):
        """See also tests/unit/plain/data/source."""
        self.refused(self.write("cut.gz", gzip.compress(TEXT)[:20000]), parts=["cut.gz", "truncated", "byte 20000"])
        lines = self.write("l.jsonl", '{"text": "x"}\n{"body": "y"}\n')
        self.refused(lines, "--field", "txt", parts=["l.jsonl", "line 1", "\"txt\"", "text"])
        self.refused(lines, parts=["--field"], status=USAGE)
        self.refused(self.write("in.gz", gzip.compress(b"\x7fELF\0\0")), parts=["in.gz", "a program"])
        self.refused(lines, "--field", "text", "--dataset", "wikitext", parts=["--field"], status=USAGE)
        self.refused(lines, "--dataset", "wiki", parts=["--dataset", "wikitext"], status=USAGE)
        self.refused(lines, "--threads", 0, parts=["--threads"], status=USAGE)


class WikiText(Sources):
    def test_a_folder_gives_a_file_for_each_part(self):
        for part in ("train", "valid", "test"):
            self.write(f"raw/wiki.{part}.raw", WIKITEXT + part)
        self.dtrain("data", "prepare", "--dataset", "wikitext", "raw", "--output", "made")
        for part in ("train", "valid", "test"):
            self.assertEqual(bytes(read_token_file(self.folder / "made" / f"{part}.dtok").tokens).decode(), WIKITEXT + part)

    def test_a_bad_part_leaves_no_outputs(self):
        self.write("raw/wiki.train.raw", WIKITEXT)
        self.write("raw/wiki.valid.raw", b"\x7fELF" + bytes(100))
        self.refused("--dataset", "wikitext", "raw", parts=["wiki.valid.raw"])
        self.write("empty/x", "")
        self.refused("--dataset", "wikitext", "empty", parts=["wiki.train.raw", "get_wikitext.sh"])

    def test_an_archive_with_a_wrong_checksum_is_not_unpacked(self):
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
        self.assertEqual(self.prepare("train.bin", "--vocab", 65536).document_ends, [63])
        found = self.prepare(self.write("all.bin", little([0, 60000, 65535] * 30)), "--vocab", 65536, "--token-type", "uint16")
        self.assertEqual((found.vocab, found.tokens), (65536, [0, 60000, 65535] * 30))
        letters = [i % 65 for i in range(400)]
        found = self.prepare(self.write("letters.bin", little(letters)), "--vocab", 65)
        self.assertEqual((found.vocab, found.tokens, found.tokenizer), (65, letters, 0))

    def test_tokens_of_a_named_type_are_converted_whatever_the_name(self):
        tokens = [1, 200, 50256, 7, 99] * 9
        for name, code in (("uint16", "H"), ("int32", "i"), ("uint32", "I"), ("int64", "q"), ("uint64", "Q")):
            found = self.prepare(self.write("tokens.dat", little(tokens, code)), "--token-type", name, "--vocab", 50304)
            self.assertEqual((found.vocab, found.tokens, found.document_ends[:2]), (50304, tokens, [3, 8]), name)
        found = self.prepare(self.write("t.bin", bytes(range(65)) * 9), "--token-type", "uint8", "--vocab", 65)
        self.assertEqual((found.tokens, found.document_ends), (list(range(65)) * 9, [585]))

    def test_arrays_of_numpy_are_converted_by_their_header(self):
        tokens = [1, 200, 3, 127] * 9
        for descr, code in (("|u1", "B"), ("<u2", "H"), ("<u4", "I"), ("<i4", "i"), ("<i8", "q"), ("<u8", "Q")):
            values = [token % 128 for token in tokens] if code == "B" else tokens
            found = self.prepare(self.write("t.npy", numpy_file(values, descr, code=code)), "--vocab", 256)
            self.assertEqual((found.tokens, found.document_ends), (values, [36]), descr)
        found = self.prepare(self.write("t.npy", numpy_file([50256, 1, 50256, 2], version=2)), "--vocab", 50257)
        self.assertEqual(found.documents, [[50256, 1], [50256, 2]])

    def test_files_of_megatron_are_converted_by_their_index(self):
        tokens, (path, index) = list(range(100, 110)), (self.folder / "m.bin", self.folder / "m.idx")
        for dtype, width, code in ((8, 2, "H"), (4, 4, "i"), (5, 8, "q")):
            path.write_bytes(little(tokens, code))
            index.write_bytes(megatron_index([3, 2, 5], [0, 2, 3], dtype, width))
            found = self.prepare(path, "--vocab", 200)
            self.assertEqual((found.tokens, found.document_ends), (tokens, [5, 10]), code)
        self.write("folder/m.bin", path.read_bytes())
        self.write("folder/m.idx", index.read_bytes())
        self.assertEqual(self.prepare("folder", "--vocab", 200).tokens, tokens)

    def test_a_file_that_contradicts_its_header_or_index_is_rejected(self):
        some = list(range(50))
        for parts, content in (
                (["(5, 10)", "ravel"], numpy_file(some, shape="(5, 10)")), (["(5, 10)"], numpy_file(some, shape="(5, 10)", order="True")),
                (["'<f4'"], numpy_file(some, "<f4", code="f")), (["'|b1'"], numpy_file(some, "|b1", code="B")),
                (["byte-swapped", ">u2", "<u2"], numpy_file(some, ">u2")), (["truncated", "50 numbers"], numpy_file(some)[:-2]),
                (["too long"], numpy_file(some) + b"\0"), (["shape ()"], numpy_file([1], shape="()")),
                (["truncated"], numpy_file(some)[:9]), (["101 bytes"], numpy_file(some)[:60]), (["version 4"], numpy_file(some, version=4)),
                (["token -100", "position 2"], numpy_file([1, 2, -100], "<i4", code="i")),
                (["token 18446744073709551615"], numpy_file([2**64 - 1], "<u8", code="Q"))):
            self.refused(self.write("t.npy", content), "--vocab", 100, parts=["t.npy", *parts])
        self.refused(self.write("t.npy", numpy_file(some)), parts=["t.npy", "--vocab N"], status=USAGE)
        self.write("t.bin", little(some))
        good = megatron_index([20, 30], [0, 1, 2])
        for parts, content in (
                (["98 bytes", "100"], megatron_index([20, 29], [0, 1, 2])), (["type 7"], megatron_index([20, 30], [0, 1, 2], 7)),
                (["version 2"], megatron_index([20, 30], [0, 1, 2], version=2)), (["truncated"], good[:-1]), (["truncated"], good[:20]),
                (["TNTIDX"], b"TNTIDX\0\0" + bytes(90)), (["MMIDIDX"], bytes(90)),
                (["document 0", "sequence 9"], megatron_index([20, 30], [0, 9, 2])),
                ([str(2**63 - 8), "100"], good[:50] + struct.pack("<q", 2**63 - 8) + good[58:]),
                (["truncated"], good[:26] + struct.pack("<q", -2**63) + good[34:])):
            self.write("t.idx", content)
            self.refused("t.bin", "--vocab", 100, parts=["t.idx", *parts])
        self.write("t.idx", good)
        self.refused("t.bin", "--vocab", 100, "--token-type", "uint16", parts=["t.bin", "--token-type"], status=USAGE)
        self.refused("t.idx", parts=["t.idx", "Megatron"])

    def test_files_of_different_types_are_not_mixed(self):
        self.write("shards/a.npy", numpy_file([1, 2]))
        self.write("shards/b.npy", numpy_file([1, 2], "<u4", code="I"))
        self.refused("shards", "--vocab", 9, parts=["a.npy", "b.npy", "uint16", "uint32"], status=USAGE)

    def test_an_uncertain_type_is_never_guessed(self):
        """Tokens of every text, as words numbered by frequency, alphabetically and as characters."""
        words = TEXT.decode().split()
        by_name = {word: number for number, word in enumerate(sorted(set(words)))}
        by_count = {word: number for number, (word, _) in enumerate(collections.Counter(words).most_common())}
        signs = sorted(set(TEXT))
        wide = [131 * by_name[word] % 128256 for word in words]  # more than 16 bits
        for tokens in ([by_name[word] for word in words], [by_count[word] for word in words], [signs.index(sign) for sign in TEXT],
                       wide):
            for count in (100, len(tokens)):
                for code, part in (("<H", None), (">H", "byte-swapped"), ("<I", "32- or 64-bit"), (">I", "32- or 64-bit"), ("<q", "32- or 64-bit"),
                                   (">q", "32- or 64-bit")):
                    if tokens is wide and code[1] == "H":
                        continue
                    path = self.write("t.bin", struct.pack(f"{code[0]}{count}{code[1]}", *tokens[:count]))
                    if part is None:
                        self.assertEqual(self.prepare(path, "--vocab", 65536).tokens, tokens[:count])
                    else:
                        self.refused(path, "--vocab", 65536, parts=["t.bin", part])
        for content in (bytes(token % 65 for token in TEXT), bytes(400), little([5] * 99), little([0x4142, 0x4344, 0x8081]),
                        little([1, 2]), little([258]), bytes(range(256)) * 4, TEXT[:99] + b"\xe9"):
            self.refused(self.write("t.bin", content), "--vocab", 65536, parts=["t.bin", "--token-type"])
        self.refused(self.write("t.bin", little(range(9)) + b"\0"), parts=["t.bin", "truncated", "19 bytes"])
        self.refused(self.write("t.bin", TEXT[:99] + b"\xe9!"), parts=["t.bin", "101 bytes", "iconv"])
        self.assertEqual(bytes(self.prepare(self.write("t.bin", TEXT)).tokens), TEXT)
        self.refused(self.write("t.bin", TEXT.decode().encode("utf-16-le")), parts=["t.bin", "UTF-16LE"])

    def test_weights_are_not_mistaken_for_tokens(self):
        signs = random.Random(1)
        weights = [signs.gauss(0, 0.02) for _ in range(8000)]
        for content in (little(weights, "e"), b"".join(struct.pack("<f", weight)[2:] for weight in weights), little(weights, "f"),
                        little(weights, "d")):
            self.refused(self.write("t.bin", content), "--vocab", 65536, parts=["t.bin", "floating-point", "--token-type"])

    def test_a_given_type_is_only_for_headerless_files(self):
        typed = ("--token-type", "uint16", "--vocab", 65536)
        for name, content in (("t.txt", TEXT), ("g.bin", llm_c([1, 2])), ("t.npy", numpy_file([1, 2])), ("t.gz", gzip.compress(TEXT)),
                              ("t.dtok", b"\x89DTOK\r\n\x1a" + bytes(90)), ("t.zip", b"PK\x03\x04" + bytes(90))):
            self.refused(self.write(name, content), *typed, parts=[name, "--token-type"], status=USAGE)
        self.refused(self.write("t.bin", bytes(99)), *typed, parts=["t.bin", "truncated", "99 bytes"])
        self.refused(self.write("t.bin", little([1, 2])), "--token-type", "uint16", parts=["t.bin", "--vocab N"], status=USAGE)
        self.refused("t.bin", "--token-type", "float32", parts=["--token-type", "float32", "uint16"], status=USAGE)
        self.refused(self.write("t.bin", little([1, -1], "i")), "--token-type", "int32", "--vocab", 9, parts=["t.bin", "token -1"])

    def test_an_assumed_vocabulary_is_reported_with_the_highest_token(self):
        letters = self.write("letters.bin", little([i % 65 for i in range(400)]))
        result = self.dtrain("data", "prepare", letters, "--output", "a.dtok")
        self.assertRegex(result.stderr, r"\A[^\n]*a\.dtok: assumed vocabulary 50257, [^\n]* 64;[^\n]* --vocab N, at least 65\n\Z")
        result = self.dtrain("data", "prepare", letters, "--vocab", 65, "--output", "b.dtok")
        self.assertEqual(result.stderr, "")
        result = self.dtrain("data", "prepare", self.write("full.bin", llm_c([50256, 1, 2])), "--output", "c.dtok")
        self.assertRegex(result.stderr, r"\A[^\n]*c\.dtok: assumed vocabulary 50257, [^\n]* 50256\n\Z")
        self.assertEqual(self.dtrain("data", "prepare", self.write("t", TEXT), "--output", "d.dtok").stderr, "")

    def test_errors_name_the_cause_and_leave_no_files(self):
        good = llm_c(range(1000))
        self.refused(self.write("s.bin", struct.pack(">256i", 20240520, 1, 5, *[0] * 253)), parts=["s.bin", "byte-swapped"])
        self.refused(self.write("n.bin", struct.pack(">100H", *range(1000, 1100))), parts=["n.bin", "byte-swapped"])
        letters = [i % 65 for i in range(400)]
        self.refused(self.write("b.bin", struct.pack(">400H", *letters)), "--vocab", 65, parts=["b.bin", "byte-swapped"])
        for code in "IQ":
            self.refused(self.write("w.bin", little(letters, code)), parts=["w.bin", "32- or 64-bit", "--token-type"])
        self.refused(self.write("v.bin", llm_c([1], version=3)), parts=["v.bin", "version 3"])
        self.refused(self.write("c.bin", good[:-10]), parts=["c.bin", "truncated", "1000 tokens"])
        self.refused(self.write("o.bin", little(range(100, 300))), "--vocab", 250,
                     parts=["o.bin", "token 250", "position 150", "--vocab"])
        self.refused(self.write("g.bin", good), self.write("t.txt", "text"), parts=["g.bin", "t.txt"], status=USAGE)
        self.refused("g.bin", "--field", "text", parts=["--field"], status=USAGE)
        self.refused("g.bin", "--as-text", parts=["g.bin", "--as-text"], status=USAGE)
        for content in (good, little(range(200)), numpy_file(range(200))):
            self.refused(self.write("z.bin.gz", gzip.compress(content)), parts=["z.bin.gz", "decompress"])
        self.refused("t.txt", "--vocab", 300, parts=["--vocab"], status=USAGE)
        self.refused(self.write("w.dat", little(letters, "I")), "--vocab", 300, parts=["w.dat", "--token-type uint32"])
        self.refused(self.write("m.idx", megatron_index([1], [0, 1])), "--vocab", 300, parts=["m.idx", "Megatron"])
        self.refused(self.write("none.npy", numpy_file([])), "--vocab", 300, parts=["none.npy", "new.dtok"])
        fields = numpy_file([1, 2]).replace(b"'descr': '<u2'", b"'descr': [('a', '<u2')]")
        self.refused(self.write("fields.npy", fields), "--vocab", 300, parts=["fields.npy", "<u4"])


def spm(program, *arguments, text=None):
    return subprocess.run([f"spm_{program}", "--minloglevel=2", *map(str, arguments)], input=text, capture_output=True, text=True,
                          check=True).stdout


class Tokenizers(DataTest):
    """SentencePiece: tokens compared with its own programs, models of ours, and errors for bad ones."""

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

    def test_a_model_of_bytes_rejects_tokens_of_an_equal_vocabulary(self):
        text = self.write("book.txt", TEXT)
        spm("train", f"--input={text}", f"--model_prefix={self.folder / 'theirs'}", "--vocab_size=256", "--model_type=bpe")
        self.dtrain("data", "prepare", "book.txt", "--tokenizer", "theirs.model", "--output", "theirs.dtok")
        self.dtrain("--layers", 1, "--width", 16, "--heads", 1, "--neurons", 16, "--seq-len", 16, "--threads", 1, "--steps", 1, "--data",
                    "book.txt", "--run-dir", "run")
        for named, *flags in (("--new-data", "--resume", "run", "--new-data"), ("--init-from", "--init-from", "run", "--seq-len", 16)):
            result = self.dtrain(*flags, "--data", "theirs.dtok", "--steps", 2, "--run-dir", "new", status=DATA)
            error_line(result.stderr, named, "theirs.dtok", "bytes")

    def test_the_report_counts_every_byte_of_the_text(self):
        book = self.write("lines.txt", b"\n\n" + TEXT + b"\n\n")
        size = book.stat().st_size
        result = self.dtrain("data", "tokenizer", "train", book, "--vocab-size", 700, "--output", "lines.model")
        self.assertIn(f"trained on {size} of {size} bytes", result.stdout)

    def test_a_model_of_ours_is_lossless(self):
        for flags in ((), ("--type", "unigram")):
            model = self.our_model(*flags, "--overwrite")
            self.assertEqual(self.our_model(*flags, "--overwrite", name="again.model").read_bytes(), model.read_bytes())
            text = TEXT[:5000].decode() + "  two\tspaces \u65e5\u672c\u8a9e \U0001f600\n\n\nend \n"
            found = self.prepare(self.write("t", text), "--tokenizer", model)
            self.assertEqual(found.tokens.pop(), 1)  # the end of the document
            self.assertEqual(spm("decode", f"--model={model}", "--input_format=id", text=" ".join(map(str, found.tokens)) + "\n"),
                             text + "\n")

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

    def test_errors_name_the_cause_and_leave_no_files(self):
        model, book = self.our_model(), self.folder / "book.txt"
        bad = self.write("bad.txt", TEXT + b"caf\xe9 " + TEXT)
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
        self.assertRegex(result.stderr, r"characters .*\d+ pieces$")
        self.refused(*train, 500, "--type", "word", parts=["--type", "bpe"], status=USAGE)
        self.refused("tokenizer", "train", book, "--output", "ours.model", "--vocab-size", 500, parts=["--overwrite"], status=USAGE)
        self.refused("tokenizer", "train", bad, "--output", "new.model", "--vocab-size", 500, parts=["bad.txt", "UTF-8"])
        self.refused("tokenizer", "trian", parts=["train"], status=USAGE)


if __name__ == "__main__":
    unittest.main()
