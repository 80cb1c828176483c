"""Files that are compiled at once share the names of their anonymous namespaces: of two functions with one name a call could
take the other file's without a word."""

import collections
import json
import os
import pathlib
import re
import unittest

BINARY = pathlib.Path(os.environ["DTRAIN_BINARY_DIR"])
ANONYMOUS = re.compile(r"^namespace \{\n(.*?)^\}  // namespace$", re.DOTALL | re.MULTILINE)
INCLUDE = re.compile(r'^#include "(.*\.cpp)"$', re.MULTILINE)
# What clang-format leaves in the first column begins a declaration.
FUNCTION = re.compile(r"^(?:template <[^{]*?>\s*)?(?:\[\[\w+\]\]\s*)?(?!using\b|namespace\b|struct\b|class\b|enum\b|TEST_CASE\b|TORCH_)"
                      r"[A-Za-z][^=;{(]*?[\s&*>](\w+)\(", re.DOTALL | re.MULTILINE)


def functions_of(text):
    """The names of the functions in the anonymous namespaces of a file."""
    code = re.sub(r"//[^\n]*", "", "\n".join(ANONYMOUS.findall(text)))
    return set(FUNCTION.findall(code))


def shared_names(files):
    """Each name that more than one of the files has, and those files."""
    owners = collections.defaultdict(list)
    for file in files:
        for name in functions_of(pathlib.Path(file).read_text()):
            owners[name].append(file)
    return {name: files for name, files in owners.items() if len(files) > 1}


def files_of_targets():
    """The sources of each of the build's targets."""
    targets = collections.defaultdict(set)
    for command in json.loads((BINARY / "compile_commands.json").read_text()):
        target = re.search(r"-o \S*?CMakeFiles/([^/]+)\.dir/", command["command"])[1]
        file = pathlib.Path(command["file"])
        targets[target] |= set(INCLUDE.findall(file.read_text())) if file.suffix == ".cxx" else {str(file)}
    return targets


class Names(unittest.TestCase):
    def test_no_two_files_of_a_target_have_a_function_of_one_name(self):
        targets = files_of_targets()
        self.assertIn("dtrain_config", targets)
        for target, files in targets.items():
            if any("/tests/" in file for file in files):
                continue  # each has a namespace of its own
            with self.subTest(target):
                self.assertEqual({}, shared_names(sorted(files)))

    def test_names_are_found(self):
        text = "namespace {\nint one(int a) {\n  return two(a);\n}\ntemplate <class T>\nstd::vector<T>\nthree(T) {}\n}  // namespace\nint four();\n"
        self.assertEqual({"one", "three"}, functions_of(text))


if __name__ == "__main__":
    unittest.main()
