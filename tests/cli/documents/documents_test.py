"""Every fence of the documents says whether it is run, and README's commands do what it says. documents_*_test.py run the others' pages."""

import collections
import re
import unittest

from documents_harness import NOTES, RUN_TAGS, TAGS, Fence, commands_of, difference, documents, fences_of, run_page
from dtrain_harness import SOURCE

# Reasons why commands are not run -> the number of fences with that reason.
NOT_RUN = {
    "installs, builds or tests all of dtrain": 4,
    "measures for minutes": 1,
    "needs a container engine": 1,
    "needs a GPU": 1,
    "needs a SLURM cluster": 2,
    "needs a model's folder": 1,
    "needs a network": 4,
    "needs Open MPI": 1,
    "needs several machines": 1,
    "needs xxhsum, of Debian's xxhash": 1,
    "serves until it is stopped": 1,
    "tests/cli/scripts/install_test.py runs it": 2,
    "tests/cli/scripts/quickstart_test.py runs it": 1,
}
RUN_FOLDER = re.compile(r"(?:--run-dir |RUN_DIR=|run=)(\S+)")


class Marks(unittest.TestCase):
    def setUp(self):
        self.fences = {name: fences_of(path.read_text()) for name, path in documents().items()}

    def test_every_fence_has_a_known_tag_and_known_notes(self):
        wrong = [f"{name}:{fence.line}: {fence.tag or 'no tag'} {fence.notes}" for name, fences in self.fences.items()
                 for fence in fences if fence.tag not in TAGS or not all(NOTES.fullmatch(note) for note in fence.notes)]
        self.assertEqual(wrong, [])

    def test_no_code_is_indented_instead(self):
        wrong = []
        for name, path in documents().items():
            outside = re.sub(r"^```.*?^```$", lambda found: re.sub(r"[^\n]", "", found[0]), path.read_text(), flags=re.DOTALL | re.MULTILINE)
            wrong += [f"{name}: {line.strip()}" for line in re.findall(r"\n\n( {4}.*)", outside)]
            wrong += [f"{name}: {line}" for line in re.findall(r"^.+```.*$|^```.*$", outside, re.MULTILINE)]
        self.assertEqual(wrong, [])

    def test_fences_that_are_not_run_have_a_known_reason(self):
        found = collections.Counter(fence.note("not run:") for fences in self.fences.values() for fence in fences
                                    if fence.tag in RUN_TAGS and not fence.runs)
        self.assertEqual(dict(found), NOT_RUN)

    def test_no_two_pages_share_a_run_folder(self):
        users = collections.defaultdict(set)
        for name, fences in self.fences.items():
            for fence in fences:
                for folder in RUN_FOLDER.findall(fence.text) if fence.tag in RUN_TAGS else ():
                    users[folder.strip("\"'")].add(name)
        self.assertGreater(len(users), 20, "this test must have found the folders")
        self.assertEqual({folder: names for folder, names in users.items() if len(names) > 1}, {})

    def test_every_page_with_commands_is_run(self):
        pages = {name for name, fences in self.fences.items() if any(fence.runs for fence in fences)}
        run = {name for path in (SOURCE / "tests" / "cli" / "documents").glob("documents_*_test.py")
               for name in re.findall(r'"((?:docs|scripts|tests)/[\w/]+\.md)"', path.read_text())}
        self.assertEqual(run | {"README.md"}, pages)


class Checker(unittest.TestCase):
    def check(self, text, written, *notes):
        fence = Fence(1, "console", text, list(notes))
        return difference(text.splitlines(), written.splitlines(), fence)

    def test_output_that_differs_is_found(self):
        for shown, written in (("a", "b"), ("a 1", "a 2"), ("a", "a\nb"), ("a\nb", "a"), ("a\n...\nc", "a\nb"), ("a ... c", "a c d"),
                               ("memory 3 MiB", "memory 4 MiB")):
            self.assertNotEqual(self.check(shown, written), "", (shown, written))
        self.assertNotEqual(self.check("step 1 a", "step 2 b", "numbers vary"), "")
        self.assertNotEqual(self.check("cores  2 of 3", "memory  2 of 3", "labels only"), "")

    def test_output_that_is_as_shown_passes(self):
        for shown, written in (("a\n...\nd", "a\nb\nc\nd"), ("...\nb", "a\nb"), ("a ... c", "a b c"), ("in 3 s at 1,024 tokens/s", "in 1 min 5 s at 7 tokens/s"), ("45.9 ms, 2.0 GB/s", "1.15 s, 7 MB/s"),
                               ("a", "[0] a"), ("a", "[node1:3] a"), ("a  b", "a   b")):
            self.assertEqual(self.check(shown, written), "", (shown, written))
        self.assertEqual(self.check("step 1e-3 of 2", "step 7 of 8.5", "numbers vary"), "")
        self.assertEqual(self.check("cores   2 of 3", "cores   many", "labels only"), "")

    def test_fences_are_read_with_their_notes(self):
        first, second = fences_of("<!-- status 7 -->\n<!-- numbers vary -->\n```console\n$ a \\\n  b\nc\n$ d\n```\n\n```sh\ne\n```\n")
        self.assertEqual((first.line, first.tag, first.note("status"), second.notes), (3, "console", "7", []))
        self.assertEqual(commands_of(first), [("a \\\n  b", ["c"]), ("d", [])])
        self.assertEqual(commands_of(second), [("e\n", None)])


class Readme(unittest.TestCase):
    def test_its_commands_work_as_described(self):
        run_page(SOURCE / "README.md", given=())


if __name__ == "__main__":
    unittest.main()
