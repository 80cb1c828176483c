"""Every file, folder, link and flag that the documents name exists."""

import itertools
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["DTRAIN_BINARY_DIR"])
SOURCE = pathlib.Path(os.environ["DTRAIN_SOURCE_DIR"])

CODE = re.compile(r"^```[^\n]*\n(.*?)^```|`([^`\n]+)`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
PATH = re.compile(r"[\w.*{},-]+(?:/[\w.*{},-]*)+|[\w*{},-]+\.(?:h|cpp|py|sh|md|json|txt|cmake)\b")
# First parts of names that are the user's or the build's, and examples of files to be written.
ELSEWHERE = {"RUN", "DIR", "runs", "build", "bin", "proc", "tmp", "dev", "http:", "https:"}
WRITTEN = {"config.json", "manifest.json", "metrics.jsonl", "mine.json", "baseline.json", "book.txt", "train.txt", "validation.txt",
           "ds.json",
           # of Hugging Face folders
           "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"}
OTHER_PROGRAMS = ("cmake", "ctest", "clang-format", "apt-get", "git", "python3", "pip", "hf", "srun", "sbatch", "scancel", "mpirun", "torchrun",
                  "docker", "apptainer", "#SBATCH")


def documents():
    yield from (SOURCE / name for name in ("README.md", "CONTRIBUTING.md", "third_party/README.md"))
    yield from sorted((SOURCE / "docs").rglob("*.md"))


def expand(pattern):
    """a/{b,c}.h -> a/b.h, a/c.h"""
    parts = [part[1:-1].split(",") if part.startswith("{") else [part] for part in re.split(r"(\{[^}]*\})", pattern)]
    return ["".join(choice) for choice in itertools.product(*parts)]


class Names:
    """The contents of a source tree."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.top = {path.name for path in self.root.iterdir()} - {"build", "runs", ".git", ".deps"}
        self.files = {path.name for top in self.top for path in [self.root / top, *(self.root / top).rglob("*")]}

    def missing(self, document, text):
        for target in LINK.findall(text):
            if "://" not in target and not (document.parent / target).exists():
                yield f"links to {target}"
        for code in (first or second for first, second in CODE.findall(text)):
            for name in PATH.findall(code):
                yield from (f"names {path}" for path in expand(name.rstrip(".,")) if not self.exists(path, document))

    def exists(self, name, document):
        first = name.partition("/")[0]
        if name.rpartition("/")[2] in WRITTEN or first in ELSEWHERE or "NAME" in name:
            return True
        if "/" not in name:  # a file that the sentence has placed already
            return any(self.root.rglob(name)) if "*" in name else name in self.files
        places = [self.root, self.root / "lib", self.root / "lib" / "dtrain", document.parent]
        if first not in self.top and not any((place / first).exists() for place in places):
            return True  # no path of ours: "and/or", "tokens/s"
        pattern = name.rstrip("/")  # without its ending it stands for header and source
        return any(any(place.glob(pattern)) or any(place.glob(pattern + ".h")) for place in places)


def run(program, *arguments):
    return subprocess.run([BUILD / "bin" / program, *arguments], capture_output=True, text=True, check=True).stdout


def known_flags():
    """Program or subcommand -> flags of its help."""
    flags = {"dtrun": run("dtrun", "--help"), "train": run("dtrain", "--help"), "data": "".join(run("dtrain", "data", *tool, "--help") for tool in (("prepare",), ("tokenizer", "train"), ("info",)))}
    flags.update({name: run("dtrain", name, "--help") for name in ("generate", "evaluate", "verify", "plan", "report", "schedule")})
    flags["checkpoint"] = "".join(run("dtrain", "checkpoint", tool, "--help") for tool in ("list", "diff", "verify", "export", "import"))
    flags = {name: set(FLAG.findall(text)) | {"--help"} for name, text in flags.items()}
    flags["data"] |= flags["train"]  # data baseline takes them too
    flags["scripts"] = {flag for path in (SOURCE / "scripts").rglob("*") if path.suffix in (".sh", ".py")
                        for flag in FLAG.findall(path.read_text())}
    return flags


def command_of(line, flags):
    """Whose flags a line of code uses: a key of `flags`, "other" for foreign programs, None for any of ours."""
    words = line.strip().lstrip("$ ").split()
    program = words[0].rpartition("/")[2] if words else ""
    if program in OTHER_PROGRAMS:
        return "other"
    if program.endswith((".sh", ".py")):
        return "scripts"
    if program == "dtrain":
        return words[1] if len(words) > 1 and words[1] in flags else "train"
    return "dtrun" if program == "dtrun" else None


def unknown_flags(text, flags):
    known = set().union(*flags.values())
    outside = CODE.sub(" ", text)
    yield from (flag for flag in FLAG.findall(outside) if flag not in known)
    for code in (first or second for first, second in CODE.findall(text)):
        for line in re.split(r"\n|&&|;", code.replace("\\\n", " ")):
            before, separator, after = line.partition(" -- ")  # dtrun's own, and the program's
            for part in [before, after] if separator else [line]:
                command = command_of(part, flags)
                allowed = known if command is None else flags.get(command)
                yield from (flag for flag in FLAG.findall(part) if allowed is not None and flag not in allowed)


class Documents(unittest.TestCase):
    maxDiff = None

    def test_files_and_links(self):
        names = Names(SOURCE)
        wrong = [f"{path.relative_to(SOURCE)} {problem}" for path in documents()
                 for problem in names.missing(path, path.read_text())]
        self.assertEqual(wrong, [])

    def test_flags(self):
        flags = known_flags()
        self.assertGreater(len(flags["train"]), 30, "this test must have understood the help")
        wrong = [f"{path.relative_to(SOURCE)} names {flag}" for path in documents()
                 for flag in unknown_flags(path.read_text(), flags)]
        self.assertEqual(wrong, [])


class TheTestItself(unittest.TestCase):
    def missing(self, text):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "docs" / "internals").mkdir(parents=True)
            (root / "docs" / "internals" / "tour.md").write_text("")
            (root / "lib" / "dtrain" / "comm").mkdir(parents=True)
            (root / "lib" / "dtrain" / "comm" / "world.h").write_text("")
            return list(Names(root).missing(root / "README.md", text))

    def test_what_exists_passes(self):
        self.assertEqual(self.missing("[tour](docs/internals/tour.md#top) [w](https://x.org) `comm/world.h` `world.h` `comm/*.h` "
                                      "`lib/dtrain/{comm,comm}/` `RUN/config.json` `tokens/s`\n```\ncat docs/internals/tour.md\n```\n"),
                         [])

    def test_what_is_missing_is_named(self):
        for text, name in (("[a](docs/gone.md)", "docs/gone.md"), ("`docs/gone.md`", "docs/gone.md"),
                           ("`comm/gone.h`", "comm/gone.h"), ("`gone.cpp`", "gone.cpp"),
                           ("```\ncat docs/gone.md\n```", "docs/gone.md"),
                           ("`lib/dtrain/comm/{world,gone}.h`", "lib/dtrain/comm/gone.h")):
            self.assertEqual([problem.split()[-1] for problem in self.missing(text)], [name])

    def test_unknown_flags_are_named(self):
        flags = {"dtrun": {"--tee"}, "train": {"--lr"}, "generate": {"--from"}, "scripts": {"--peer"}}
        good = "`--lr`, --from and `dtrun --tee 3 -- dtrain --lr 1`, `scripts/bench.sh --peer P`, `cmake --preset dev`"
        self.assertEqual(list(unknown_flags(good, flags)), [])
        for bad in ("--gone", "`--gone`", "`dtrain --gone 1`", "`dtrun -n 2 -- dtrain --gone`",
                    "```\ndtrain generate \\\n  --gone\n```", "`cmake --preset x && dtrain --gone`"):
            self.assertEqual(list(unknown_flags(bad, flags)), ["--gone"])
        self.assertEqual(list(unknown_flags("`dtrain generate --lr 1`", flags)), ["--lr"])
        self.assertEqual(list(unknown_flags("`dtrun --lr 1 -- dtrain`", flags)), ["--lr"])


if __name__ == "__main__":
    unittest.main()
