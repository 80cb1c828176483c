"""Reads the documents' fences, and runs those of a page in order, in a folder of its own, as a reader would.

The word after the three backquotes says what a fence is:

  sh       commands: they run, and must succeed
  console  lines that begin with "$ " are commands: they run, and must write the lines below them
  python   a program: it runs in the page's folder, with the Python of scripts/setup.sh --dev
  text, json  not run: syntax, illustrations, files

Comments right above a fence change that; a reader of the page does not see them:

  <!-- not run: REASON -->  one of NOT_RUN in documents_test.py
  <!-- status N -->         the status of the last command
  <!-- output -->           of a text: lines that the commands of the fence before wrote, one below the other
  <!-- numbers vary -->     of the output the words are compared, not the numbers
  <!-- labels only -->      only what stands before two spaces

In shown output "..." stands for anything, and for any lines where it is one. Ranks before lines, times and rates are not compared.
"""

import dataclasses
import functools
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

from dtrain_harness import BUILD, DTRAIN, PYTHON, SOURCE, make_folder, run

TAGS = ("sh", "console", "python", "json", "text")
RUN_TAGS = ("sh", "console", "python")
COMMENT = re.compile(r"<!-- (.*) -->")
NOTES = re.compile(r"not run: .+|status \d+|output|numbers vary|labels only")
LIMIT = 200  # seconds before a command has failed; none needs more than a few

# Replaces dtrain in PATH: it shortens training and evaluations and shrinks large models; everything else is as on the page.
FEW_STEPS = """#!/bin/sh
case "$*" in
  *--help*|*--version*) ;;
  -*"--profile "*) exec "$DOCUMENTS_DTRAIN" "$@" --eval-sequences 8 ;;
  *"--steps "*|*"--epochs "*) ;;
  -*25m.json*|-*prod.json*) exec "$DOCUMENTS_DTRAIN" "$@" --steps 4 --layers 2 --width 64 --neurons 512 --seq-len 32 ;;
  -*"--eval-sequences "*) exec "$DOCUMENTS_DTRAIN" "$@" --steps 4 ;;
  -*) exec "$DOCUMENTS_DTRAIN" "$@" --steps 4 --eval-sequences 16 ;;
  "evaluate "*) exec "$DOCUMENTS_DTRAIN" "$@" --eval-sequences 16 ;;
esac
exec "$DOCUMENTS_DTRAIN" "$@"
"""


@dataclasses.dataclass
class Fence:
    line: int
    tag: str
    text: str
    notes: list

    def note(self, beginning):
        """The rest of the comment that starts with `beginning`; None if there is none."""
        found = [note[len(beginning):].strip() for note in self.notes if note.startswith(beginning)]
        return found[0] if found else None

    @property
    def runs(self):
        return self.tag in RUN_TAGS and self.note("not run:") is None


def fences_of(text):
    found, notes, fence = [], [], None
    for number, line in enumerate(text.split("\n"), 1):
        if fence and line == "```":
            found.append(fence)
            fence, notes = None, []
        elif fence:
            fence.text += line + "\n"
        elif line.startswith("```"):
            fence = Fence(number, line[3:].strip(), "", notes)
        elif comment := COMMENT.fullmatch(line):
            notes = [*notes, comment[1]]
        else:
            notes = []
    return found


def documents():
    """Every document, by its path from the checkout."""
    paths = [*SOURCE.glob("*.md"), *(path for folder in ("docs", "scripts", "tests", "third_party") for path in (SOURCE / folder).rglob("*.md"))]
    return {path.relative_to(SOURCE).as_posix(): path for path in sorted(paths)}


def commands_of(fence):
    """(command, expected lines or None): each command of a console fence, or the whole text of another fence."""
    if fence.tag != "console":
        return [(fence.text, None)]
    found = []
    for line in fence.text.rstrip("\n").split("\n"):
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found and not found[-1][1] and found[-1][0].endswith("\\"):
            found[-1] = (found[-1][0] + "\n" + line, [])
        else:
            found[-1][1].append(line)
    return found


NUMBER = r"-?\d+(?:[.,]\d+)*(?:e[+-]?\d+)?"
TIME = re.compile(rf"{NUMBER} ?(?:ns|us|ms|s|min|h)(?: {NUMBER} ?(?:ms|s|min))?(?![\w/])")
RATE = re.compile(NUMBER + r" ?(?:[KMG]?(?:B|bit)/s|tok/s|tokens/s|%)(?!\w)")


def same(line, fence):
    """`line` without its rank and without values that vary between runs and machines."""
    line = re.sub(r"^\[(\w+:)?\d+\] ", "", line.rstrip())
    if fence.note("labels only") is not None:
        return re.sub(NUMBER, "#", re.split(r"  +", line.strip())[0])
    line = RATE.sub("(rate)", TIME.sub("(time)", line))
    if fence.note("numbers vary") is not None:
        line = re.sub(NUMBER, "#", line)
    return re.sub(r"  +", " ", line)


def difference(shown, written, fence):
    """The first expected line that the output lacks; "" if the output matches."""
    shown, written = ([same(line, fence) for line in lines] for lines in (shown, written))
    place, gap = 0, False
    for line in shown:
        if line.strip() == "...":
            gap = True
            continue
        pattern = re.compile(".*".join(map(re.escape, line.split("..."))))
        end = len(written) if gap else place + 1
        found = next((i for i in range(place, min(end, len(written))) if pattern.fullmatch(written[i])), None)
        if found is None:
            return f"shown: {line}\nwritten: {written[place] if place < len(written) else 'nothing more'}"
        place, gap = found + 1, False
    return "" if gap or place == len(written) else f"written, but not shown: {written[place]}"


class Shell:
    """Runs commands in one folder; exported variables persist."""

    def __init__(self, folder):
        self.folder, self.state = folder, folder.parent / "environment"
        programs = folder / "build" / "release" / "bin"
        programs.mkdir(parents=True)
        (programs / "dtrun").symlink_to(BUILD / "bin" / "dtrun")
        (programs / "dtrain").write_text(FEW_STEPS)
        (programs / "dtrain").chmod(0o755)
        for name in ("configs", "docs", "scripts", "tests"):
            (folder / name).symlink_to(SOURCE / name)
        self.state.write_text("")
        self.environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "COLUMNS": "200",
                            "OMP_NUM_THREADS": "1",  # threads wait for each other beside other work, and compute meanwhile
                            "DOCUMENTS_DTRAIN": str(BUILD / "bin" / "dtrain")}

    def run(self, command):
        """The status and the output."""
        script = f"set -euo pipefail\n. {self.state}\n{command}\nexport -p >{self.state}\n"
        process = subprocess.Popen(["bash", "-c", script], cwd=self.folder, env=self.environment, text=True, errors="replace",
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        try:
            output = process.communicate(timeout=LIMIT)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return process.returncode, output


def run_fence(shell, fence):
    """The output of its commands; raises AssertionError if a command does not behave as the page says."""
    written = []
    for command, shown in commands_of(fence):
        if fence.tag == "python":
            (shell.folder / "fence.py").write_text(command)
            command = f"{PYTHON} fence.py"
        status, output = shell.run(command)
        if status != int(fence.note("status") or 0):
            raise AssertionError(f"{command}\nstatus {status}\n{output}")
        if shown is not None and (wrong := difference(shown, output.splitlines(), fence)):
            raise AssertionError(f"{command}\n{wrong}\nwhole output:\n{output}")
        written += output.splitlines()
    return written


def check_output(fence, written):
    """Checks a text that shows part of the output of the commands above it."""
    if wrong := difference(["...", *fence.text.splitlines(), "..."], written, fence):
        raise AssertionError(wrong + "\nwhole output:\n" + "\n".join(written))


def run_page(path, given=("book.txt", "book.dtok")):
    """Runs a page's fences in order; `given`: files that README's first part creates."""
    with tempfile.TemporaryDirectory(prefix="dtrain-documents-") as scratch:
        folder = pathlib.Path(scratch) / "dtrain"
        folder.mkdir()
        shell, written = Shell(folder), []
        for name in given:
            shutil.copy(books() / name, folder / name)
        for fence in fences_of(path.read_text()):
            try:
                if fence.runs:
                    written = run_fence(shell, fence)
                elif fence.note("output") is not None:
                    check_output(fence, written)
            except (AssertionError, subprocess.TimeoutExpired) as error:
                raise AssertionError(f"{path.relative_to(SOURCE)}:{fence.line}: {error}") from None


@functools.cache
def books():
    """The folder of README's text and token file."""
    folder = make_folder(unittest)
    with open(folder / "book.txt", "wb") as file:
        subprocess.run(["bible", "-f", "gen1:1-rev22:21"], stdout=file, check=True)
    run(DTRAIN, "data", "prepare", folder / "book.txt", "--output", folder / "book.dtok")
    return folder


def pages_test(names):
    """A TestCase with a test for each of these pages."""
    def test_of(name):
        return lambda self: run_page(SOURCE / name)
    tests = {"test_" + re.sub(r"\W", "_", name.removesuffix(".md")): test_of(name) for name in names}
    return type("Pages", (unittest.TestCase,), tests)
