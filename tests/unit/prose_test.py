"""Tests pin statuses, names and numbers, not sentences: no literal of a test repeats three words of a message.

Whole texts are approved in tests/transcripts. What a test feeds a program, or says itself where it fails, may be prose.
"""

import ast
import os
import pathlib
import re
import unittest

SOURCE = pathlib.Path(os.environ["DTRAIN_SOURCE_DIR"])
LITERAL = re.compile(r'R"(\w*)\((.*?)\)\1"|"((?:\\.|[^"\\\n])*)"', re.DOTALL)
WORDS = re.compile(r"\b(?:[A-Za-z]{2,}|a)(?: (?:[A-Za-z]{2,}|a)\b){2,}")
# Calls whose text is input, or what the test itself says.
INPUT = {"AssertionError", "print", "sendall", "skipTest", "skipIf", "skipUnless", "subTest", "wait_until", "write", "write_bytes", "write_text"}
# C++ tests that keep the rule, and macros and functions whose text is input, or what the test itself says.
CPP_FOLDERS = ("device", "dist", "golden", "parity", "unit/fake", "unit/nccl", "unit/plain", "unit/torch")
CPP_INPUT = {"CAPTURE", "Error", "FAIL", "FAIL_CHECK", "INFO", "SECTION", "SKIP", "TEMPLATE_TEST_CASE", "TEST_CASE", "WARN", "expect", "fail",
             "print", "runtime_error"}
CPP_TOKEN = re.compile(rf"//[^\n]*|/\*.*?\*/|{LITERAL.pattern}|(?<!\w)'(?:\\.|[^'\\\n])+'|\w+|[^\s\w]", re.DOTALL)
COMMAND = re.compile("dtrain (checkpoint|data|help|report) |data tokenizer train")  # a name of three words
ONE_VALUE = {"assertTrue", "assertFalse", "assertIsNone", "assertIsNotNone"}  # which a message may follow


def triples(text):
    for run in WORDS.findall(text):
        words = run.lower().split(" ")
        found = (" ".join(words[i:i + 3]) for i in range(len(words) - 2))
        yield from (triple for triple in found if not COMMAND.match(triple))


def literals_of_python(tree, skipped=()):
    """The strings of a syntax tree, without docstrings and the parts of `skipped`."""
    skipped = {id(part) for part in skipped}
    todo = [tree]
    while todo:
        node = todo.pop()
        if id(node) in skipped or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node
        todo += ast.iter_child_nodes(node)


def said_by_the_test(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in INPUT:
                yield from node.args
            elif re.match("assert[A-Z]", name):
                yield from node.args[1 if name in ONE_VALUE else 2:]


def literals_of_cpp(text):
    """(line, text) of each literal, adjacent ones as one, outside comments and the calls of CPP_INPUT."""
    calls = []  # what stands before each open bracket
    word, parts, line = "", [], 0
    for match in CPP_TOKEN.finditer(text + ";"):
        token = match[0]
        if token.startswith(("//", "/*")):
            continue
        if match[2] is not None or match[3] is not None:
            line = line if parts else text.count("\n", 0, match.start()) + 1
            parts.append(match[2] or match[3] or "")
            continue
        if parts and CPP_INPUT.isdisjoint(calls):
            yield line, "".join(parts)
        parts = []
        if token in "([{":
            calls.append(word)
        elif token in ")]}" and calls:
            calls.pop()
        word = token


def messages():
    """Each three words in a row of what the programs say."""
    found = set()
    for folder in ("apps", "launcher", "lib", "plugins", "scripts"):
        for path in sorted((SOURCE / folder).rglob("*")):
            if path.suffix in (".cpp", ".h", ".inc", ".cu"):
                text = re.sub(r'"\s*\n\s*"', "", re.sub(r"(?m)^\s*//.*$", "", path.read_text()))
                for match in LITERAL.finditer(text):
                    found.update(triples(match[2] or match[3] or ""))
            elif path.suffix == ".py":
                for node in literals_of_python(ast.parse(path.read_text())):
                    found.update(triples(node.value))
    return found


def literals_of_test(text, suffix):
    if suffix != ".py":
        return literals_of_cpp(text)
    tree = ast.parse(text)
    return ((node.lineno, re.sub(r"\\(.)", r"\1", node.value)) for node in literals_of_python(tree, said_by_the_test(tree)))


def prose_of(text, suffix, said):
    """(line, words) of each literal of a test that repeats what the programs say."""
    for line, literal in literals_of_test(text, suffix):
        repeated = said.intersection(triples(literal))
        if repeated:
            yield line, sorted(repeated)[0]


class Prose(unittest.TestCase):
    def test_no_test_pins_a_sentence(self):
        said = messages()
        self.assertGreater(len(said), 1000)
        tests = SOURCE / "tests"
        paths = sorted(tests.rglob("*.py")) + [path for folder in CPP_FOLDERS for path in sorted((tests / folder).rglob("*.cpp"))]
        found = [f"{path.relative_to(SOURCE)}:{line}: {words}" for path in paths
                 for line, words in prose_of(path.read_text(), path.suffix, said)]
        self.assertEqual(found, [], "assert names and numbers (tests/cli/messages.py, tests/support/messages.h), or approve a transcript")

    def test_the_rule_itself(self):
        said = {"alpha beta gamma"}
        for text, lines in (('self.assertIn("an alpha beta gamma", x)', [1]), ('\nPART = "alpha beta gamma"', [2]), ('"""Alpha beta gamma."""', []),
                            ('self.assertTrue(x, "an alpha beta gamma")', []), ('path.write_text("an alpha beta gamma")', []),
                            ('self.assertIn("alpha beta", x, "an alpha beta gamma")', []), (r'self.assertRegex(x, r"\d+ alpha beta gamma")', [1])):
            self.assertEqual([line for line, _ in prose_of(text, ".py", said)], lines, text)
        for text, lines in (('CHECK_THAT(x, Contains("an alpha beta gamma"));', [1]), ('// "alpha beta gamma"\n', []),
                            ('CHECK(x ==\n      "an alpha "\n      "beta gamma");', [2]), ('CHECK(x == R"(an alpha beta gamma)");', [1]),
                            ("f('\"', \"alpha beta gamma\");", [1]), ('TEST_CASE("Alpha beta gamma") { f("beta"); }', []),
                            ('TEST_CASE("x") {\n  f("alpha beta gamma");\n}', [2]), ('CHECK_THAT(of([] { throw Error(k, "alpha beta gamma"); }), y);', [])):
            self.assertEqual([line for line, _ in prose_of(text, ".cpp", said)], lines, text)


if __name__ == "__main__":
    unittest.main()
