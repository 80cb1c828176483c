"""JSON input of `dtrain data prepare`: detection by content, all shapes, odd records, and standard input. Files are written by
Python's json and gzip. See also tests/unit/plain/data/source/blocks_test.cpp."""

import gzip
import json
import os
import signal
import subprocess
import unittest

from data_harness import DataTest, read_token_file
from dtrain_harness import DATA, DTRAIN, USAGE, run, wait_until
from messages import assert_error, assert_names, lines_naming

RECORDS = [{"id": i, "text": f"document {i}\n\u00e4 \"{'x' * i}\" [", "meta": {"tags": ["]", "}"], "text": "inner"}} for i in range(40)]
TEXTS = "".join(record["text"] + "\n" for record in RECORDS)


def lines(records, **options):
    return "".join(json.dumps(record, **options) + "\n" for record in records)


class Json(DataTest):
    def text_of(self, *arguments):
        return bytes(self.prepare(*arguments).tokens).decode()

    def prepare_from(self, content, *arguments, status=0):
        """Prepares standard input."""
        with self.write("input", content).open() as file:
            return run(DTRAIN, "data", "prepare", *arguments, "--output", "out.dtok", "--overwrite", cwd=self.folder, status=status, stdin=file)


class Recognition(Json):
    def test_json_is_detected_by_content_and_rejected_as_text(self):
        two = RECORDS[:2]
        for name, content in (("a.json", json.dumps(two)), ("b", lines(two)), ("c.txt", json.dumps(two[0], indent=2)),
                              ("d.json.gz", gzip.compress(lines(two).encode())), ("e.json", "\ufeff" + json.dumps([two], indent=1)),
                              ("folder/f.txt", lines(two))):
            path = self.write(name, content).relative_to(self.folder)
            self.refused("data", "prepare", path.parts[0], "--output", "new.dtok", parts=[path, "text", "meta.text", "--field", "--as-text"],
                         status=USAGE)
            if name != "d.json.gz":
                self.refused("--data", path, "--run-dir", "run", parts=[path, "data prepare", "--field"])

    def test_an_array_of_strings_has_no_field(self):
        path = self.write("s.txt", json.dumps(["word " * 300_000, "b"])).relative_to(self.folder)
        for command, status in ((("prepare", path, "--output", "new.dtok"), USAGE), (("info", path), DATA)):
            self.refused("data", *command, parts=[path, "--as-text"], status=status)
            self.assertNotIn("--field", self.dtrain("data", *command, status=status).stderr)

    def test_json_is_read_as_text_on_request(self):
        for name in ("a.json", "b.jsonl"):
            self.write(name, lines(RECORDS))
            self.assertEqual(self.text_of(name, "--as-text"), lines(RECORDS))
        self.refused("data", "prepare", "a.json", "--as-text", "--field", "text", "--output", "new.dtok", parts=["--as-text"], status=USAGE)
        self.refused("data", "prepare", "a.json", "--skip-bad-lines", "--output", "new.dtok", parts=["--field"], status=USAGE)

    def test_a_text_needs_no_field(self):
        path = self.write("small.txt", "\nIn the beginning\n" * 3)
        for flags in ([], ["--skip-bad-lines"]):
            self.refused("data", "prepare", path, "--field", "text", *flags, "--output", "new.dtok", parts=["small.txt", "line 2", "--field"])
        self.dtrain("data", "prepare", path, "--output", "new.dtok")

    def test_every_shape_gives_the_same_documents(self):
        windows = "\ufeff" + lines(RECORDS, ensure_ascii=False).replace("\n", "\r\n\r\n")
        for content in (lines(RECORDS), windows, json.dumps(RECORDS), json.dumps(RECORDS, indent=4), json.dumps([RECORDS[:7], RECORDS[7:]]),
                        "".join(json.dumps(record, indent=2) + "\n" for record in RECORDS), "".join(map(json.dumps, RECORDS))):
            data = content.encode()
            for name, stored in (("plain.json", data), ("zipped.jsonl", gzip.compress(data)),
                                 ("members.gz", gzip.compress(data[:999]) + bytes(512) + gzip.compress(data[999:]) + bytes(9999))):
                self.assertEqual(self.text_of(self.write(name, stored), "--field", "text"), TEXTS)
            self.assertEqual(self.text_of(name, "--field", "meta.text"), "inner\n" * len(RECORDS))
        self.dtrain("data", "tokenizer", "train", "plain.json", "--field", "text", "--vocab-size", 300, "--output", "t.model")

    def test_json_in_utf_16_says_how_to_convert_it(self):
        for encoding in ("utf-16", "utf-16-le"):
            self.refused("data", "prepare", self.write("wide.json", json.dumps(RECORDS).encode(encoding)), "--field", "text", "--output",
                         "new.dtok", parts=["wide.json", "iconv"])

    def test_truncated_json_is_rejected_in_any_shape(self):
        for content in (json.dumps(RECORDS)[:-1], json.dumps(RECORDS, indent=4)[:2000], json.dumps(RECORDS[0], indent=1)[:-2]):
            self.refused("data", "prepare", self.write("cut.json", content), "--field", "text", "--skip-bad-lines", "--output", "new.dtok",
                         parts=["cut.json", "truncated"])
        self.refused("data", "prepare", self.write("cut.jsonl", lines(RECORDS)[:-9]), "--field", "text", "--output", "new.dtok",
                     parts=["cut.jsonl", "line 40"])


class OddRecords(Json):
    def test_unread_fields_need_not_be_valid(self):
        deep = "[" * 200_000 + "]" * 200_000
        odd = [b'{"raw": "\xff\xe9", "text": "one"}', json.dumps({"n": [float("nan"), float("inf"), 10 ** 4000], "text": "two"}).encode(),
               f'{{"deep": {deep}, "text": "three"}}'.encode(), json.dumps({"text": "a\ud800b \udc00 \U0001f600"}).encode()]
        self.assertEqual(self.text_of(self.write("odd.jsonl", b"\n".join(odd)), "--field", "text"),
                         "one\ntwo\nthree\na\ufffdb \ufffd \U0001f600\n")

    def test_a_line_may_be_long(self):
        text = "word " * (17 << 18)
        self.write("long.jsonl", lines([{"text": text}, {"text": "short"}]))
        self.assertEqual(self.prepare("long.jsonl", "--field", "text").num_bytes, len(text) + 1 + len("short\n"))

    def test_records_without_text_are_counted_but_all_is_an_error(self):
        records = [{"text": "a"}, {"body": "b"}, {"text": None}, {"text": ""}, {"text": ["c", "d"]}, {}]
        self.write("some.jsonl", lines(records))
        result = self.dtrain("data", "prepare", "some.jsonl", "--field", "text", "--output", "out.dtok")
        assert_names(result.stderr, "3", "'some.jsonl' line 2", "'some.jsonl' line 3", "'some.jsonl' line 6")
        self.assertEqual(bytes(read_token_file(self.folder / "out.dtok").tokens), b"a\nc\nd\n")
        self.refused("data", "prepare", "some.jsonl", "--field", "txt", "--output", "new.dtok", parts=["'some.jsonl'", "line 1", "txt", "text"])
        self.write("many.jsonl", lines([{"body": "b" * 1000}] * 2000) + "no JSON\n")
        self.refused("data", "prepare", "many.jsonl", "--field", "text", "--threads", 1, "--output", "new.dtok", parts=["line 1", "body"])

    def test_bad_lines_are_skipped_and_counted_on_request(self):
        good = json.dumps({"text": "good"})
        bad = ["{", '{"text": "open', "words", '{"text": 5}', '{"text": {}}', "[]", "7", '{"text": "\\u00"}']
        for name in ("a", "b"):
            self.write(f"in/{name}.jsonl", "\n".join([good, bad[0], good, "", *bad[1:], good]))
        self.refused("data", "prepare", "in", "--field", "text", "--output", "new.dtok", parts=["in/a.jsonl", "line 2", "--skip-bad-lines"])
        for threads in (1, 5):
            result = self.dtrain("data", "prepare", "in", "--field", "text", "--skip-bad-lines", "--threads", threads, "--output", "out.dtok",
                                 "--overwrite")
            assert_names(result.stderr, 16, *(f"'in/a.jsonl' line {line}" for line in (2, 5, 6)))
            self.assertFalse(lines_naming(result.stderr, "line 7"))
            self.assertEqual(bytes(read_token_file(self.folder / "out.dtok").tokens), b"good\n" * 6)
        result = self.dtrain("data", "tokenizer", "train", "in", "--field", "text", "--skip-bad-lines", "--vocab-size", 262, "--output",
                             "t.model")
        assert_names(result.stderr, 16, "'in/a.jsonl' line 2")
        self.refused("data", "prepare", self.write("none.jsonl", "words\n{}\n"), "--field", "text", "--skip-bad-lines", "--output", "new.dtok",
                     parts=["none.jsonl", "line 1"])

    def test_the_first_fault_is_reported_with_any_number_of_threads(self):
        self.write("long", '[{"text": 5}' + ',\n{"text": "good"}' * 100_000)  # its end is missing
        for threads in (1, 5):
            self.refused("data", "prepare", "long", "--field", "text", "--threads", threads, "--output", "new.dtok",
                         parts=["long", "line 1", "--skip-bad-lines"])


class StandardInput(Json):
    def test_it_is_read_like_a_file(self):
        for content, arguments in ((TEXTS.encode(), ()), (gzip.compress(TEXTS.encode()), ()),
                                   (json.dumps(RECORDS).encode(), ("--field", "text"))):
            self.prepare_from(content, "-", *arguments)
            self.assertEqual(bytes(read_token_file(self.folder / "out.dtok").tokens).decode(), TEXTS)
        assert_error(self.prepare_from(lines(RECORDS), "-", status=None), USAGE, "'-'", "--field")
        assert_error(self.prepare_from("text", "-", "-", status=None), USAGE, "-")
        assert_error(self.prepare_from("text", "-", "--token-type", "uint8", "--vocab", 256, status=None), USAGE, "'-'", "--token-type")
        for nothing, flags in (("", ()), ("\n \n", ("--field", "text")), ('[{"text": ""}]', ("--field", "text"))):
            assert_error(self.prepare_from(nothing, "-", *flags, status=None), DATA, "'out.dtok'")
        self.refused("--data", "-", parts=["dtrain data prepare -"])

    def test_a_stop_signal_cancels_the_wait_for_it(self):
        reader, writer = os.pipe()
        process = subprocess.Popen([DTRAIN, "data", "prepare", "-", "--output", "t.dtok"], cwd=self.folder, stdin=reader)
        self.addCleanup(process.kill)
        os.write(writer, b"text" * 1000)
        wait_until(lambda: list(self.folder.glob("t.dtok.tmp-*")), "the output to be begun")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=60), -signal.SIGTERM)
        os.close(reader)
        os.close(writer)
        self.assertEqual(list(self.folder.iterdir()), [])


if __name__ == "__main__":
    unittest.main()
