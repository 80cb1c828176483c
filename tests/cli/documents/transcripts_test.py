"""What the programs print, as approved in tests/transcripts: sessions of a shell, compared after masking what each run changes.

A session holds commands ("$ ..."), what each prints (indented), its status unless that is 0 ("[2]"), and remarks ("# ...")
before commands. Its commands run in one new folder, with data.txt to train on. To approve what the programs print now:
APPROVE=1 ctest --test-dir build/release -R cli.transcripts
"""

import difflib
import os
import re
import socket
import subprocess
import unittest

from dtrain_harness import BUILD, GOLDEN, LIMIT, SOURCE, FolderTest

MASKS = [(re.compile(pattern), mask) for pattern, mask in (
    (rf"\b{re.escape(socket.gethostname())}\b", "HOST"),
    (r"\bcommit [0-9a-f]{7,40}(-modified)?\b", "commit COMMIT"),
    (r"\b(pid|process) \d+", r"\1 N"),
    (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(Z|\+00:00)?", "DATE"),
    (r"(?<![\w.-])\d[\d.]*( to \d[\d.]*)? (ms|s|min|h)\b", "TIME"),
    (r"(?<![\w.-])[\d.,]+[kMGT]? (?:[kKMGT]i?)?(tok|B|FLOP)(/s)?\b", r"N \1\2"),
    (r"\b\d{4,} bytes\b", "N bytes"),
    (r"\b(loss|grad|val|mfu|cpu=|written by)( *)(?:[\d.]+%?|(?<==)\S+|[0-9a-f]+-\d+)(?![\w.])", r"\1\2N"),
    (r'("(?:loss|perplexity|bits_per_byte)":)[\d.]+', r"\1N"),
    (r"[\d.]+( bits per \w+)", r"N\1"),
    (r"\b\d+%", "N%"),
    (r"(?m)^((?:\[0\] )?  time +).*", r"\1PARTS"),  # without those that took no time
    (r"\b\d+:\d\d(:\d\d)?\b", "TIME"))]


def masked(text, folder, masks):
    text = text.replace(f"{folder}/", "").replace(str(folder), ".").replace(f"{BUILD.parents[1]}/", "")
    for pattern, mask in masks:
        text = pattern.sub(mask, text)
    return [f"  {line}".rstrip() for line in text.splitlines()]


def run(command, folder, masks):
    """The masked lines that a command prints, and its status."""
    environment = {"PATH": f"{BUILD}/bin:{os.environ['PATH']}", "HOME": str(folder), "TMPDIR": str(folder), "LANG": "C.UTF-8"}
    result = subprocess.run(["sh", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, errors="replace", timeout=LIMIT, check=False)
    return masked(result.stdout, folder, masks) + ([f"[{result.returncode}]"] if result.returncode else [])


def again(approved, folder, masks):
    """The lines of a session whose commands have run again."""
    found = []
    for line in approved:
        if line.startswith(("$ ", "# ")):
            if found and not found[-1].startswith("# "):
                found.append("")
            found += [line, *(run(line[2:], folder, masks) if line.startswith("$ ") else [])]
    return found


class Transcripts(FolderTest):
    def test_the_programs_print_what_is_approved(self):
        sessions = sorted((SOURCE / "tests" / "transcripts").glob("*.txt"))
        self.assertGreater(len(sessions), 4)
        for session in sessions:
            with self.subTest(session.name):
                folder = self.folder / session.stem
                folder.mkdir()
                (folder / "data.txt").write_bytes((GOLDEN / "text.bin").read_bytes()[:20000])
                approved = session.read_text().splitlines()
                found = again(approved, folder, () if session.name.startswith("help") else MASKS)
                if os.environ.get("APPROVE"):
                    session.write_text("\n".join(found) + "\n")
                elif found != approved:
                    self.fail("\n".join(("APPROVE=1 approves this:", *difflib.unified_diff(approved, found, lineterm=""))))


if __name__ == "__main__":
    unittest.main()
