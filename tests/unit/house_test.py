"""The sizes of CONTRIBUTING.md: no file over 500 lines, no function over 60."""

import ast
import os
import pathlib
import re
import textwrap
import unittest

SOURCE = pathlib.Path(os.environ["DTRAIN_SOURCE_DIR"])
FOLDERS = ("apps", "cmake", "launcher", "lib", "plugins", "scripts", "tests", ".ci")
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60

# Comments, literals and preprocessor lines; what they hold counts as lines, not as code.
NO_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"'
    r"|(?<!\w)'(?:\\.|[^'\\\n])+'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.DOTALL | re.MULTILINE)
SCOPE = re.compile(r"^\s*(?:inline\s+)?(?:(?:template\s*<.*>\s*)?(?:class|struct|union|enum)\b[^()=]*"
                   r"|namespace\b.*|extern\s*)$", re.DOTALL)
MEMBER_INITIALISER = re.compile(r"\).*(?<!:):(?!:).*[\w>]\s*$", re.DOTALL)


def functions_of_cpp(text):
    """(first line, number of lines, how it begins) of each function, functions within functions left out."""
    code = NO_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
    found, head_begin, i = [], 0, 0
    while i < len(code):
        if code[i] == "{":
            head = code[head_begin:i]
            if not SCOPE.match(head):
                end = closing_brace(code, i)
                if MEMBER_INITIALISER.search(head):
                    i = end + 1
                    continue
                if is_function(head):
                    begin = head_begin + len(head) - len(head.lstrip())
                    found.append((code.count("\n", 0, begin) + 1, code.count("\n", begin, end) + 1,
                                  " ".join(head.split())[:60]))
                i = end
            head_begin = i + 1
        elif code[i] in ";}":
            head_begin = i + 1
        i += 1
    return found


def is_function(head):
    parameters = head.find("(")
    return parameters >= 0 and "=" not in re.sub(r"operator\s*\S+", "", head)[:parameters]


def closing_brace(code, opening):
    depth = 0
    for i in range(opening, len(code)):
        depth += {"{": 1, "}": -1}.get(code[i], 0)
        if depth == 0:
            return i
    return len(code) - 1


def functions_of_python(text):
    return [(node.lineno, node.end_lineno - node.lineno + 1, node.name) for node in ast.walk(ast.parse(text))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def source_files():
    for folder in FOLDERS:
        for path in sorted((SOURCE / folder).rglob("*")):
            if path.is_file() and (path.suffix in (".h", ".cpp", ".cmake", ".py", ".sh", "") or
                                   path.name == "CMakeLists.txt") and "__pycache__" not in path.parts:
                yield path


class Sizes(unittest.TestCase):
    def test_files(self):
        files = list(source_files())
        self.assertGreater(len(files), 100, "this test must have found the sources")
        lengths = {path.relative_to(SOURCE).as_posix(): path.read_text().count("\n") for path in files}
        self.assertEqual({name: lines for name, lines in lengths.items() if lines > MAX_FILE_LINES}, {})

    def test_functions(self):
        long, count = [], 0
        for path in source_files():
            functions = {".h": functions_of_cpp, ".cpp": functions_of_cpp, ".py": functions_of_python}.get(path.suffix)
            for line, lines, name in functions(path.read_text()) if functions else []:
                count += 1
                if lines > MAX_FUNCTION_LINES:
                    long.append(f"{path.relative_to(SOURCE)}:{line}: {lines} lines: {name}")
        self.assertGreater(count, 500, "this test must have found the functions")
        self.assertEqual(long, [])


class TheCounterItself(unittest.TestCase):
    def functions(self, text):
        return [(lines, name) for _, lines, name in functions_of_cpp(textwrap.dedent(text))]

    def test_functions_in_namespaces_and_classes(self):
        self.assertEqual(self.functions("""
            namespace a {
            struct S : B {
              int f() const {
                return '{';
              }
              std::vector<int> v = {1, 2};
            };
            template <typename T>
            T g(int x = 3) { return x; }
            }  // namespace a
            """), [(3, "int f() const"), (2, "template <typename T> T g(int x = 3)")])

    def test_constructors_with_initialisers(self):
        self.assertEqual(self.functions("""
            S::S(int a) : a_{a},
                          b_(std::move(b)) {
              if (a) { b(); }
            }
            auto f() -> std::string { return R"(})"; }
            """), [(4, "S::S(int a) : a_{a}, b_(std::move(b))"), (1, "auto f() -> std::string")])

    def test_tables_and_operators(self):
        self.assertEqual(self.functions("""
            constexpr Row kRows[] = {Row{"{", [](int x) { return x; }}};
            #define FIELD(m) {  \\
              m
            bool operator==(const S& a, const S& b) { return true; }  // }
            """), [(1, "bool operator==(const S& a, const S& b)")])

    def test_length(self):
        text = "void f() {\n" + "  g();\n" * 70 + "}\n"
        self.assertEqual(functions_of_cpp(text), [(1, 72, "void f()")])
        self.assertEqual(functions_of_python("def f():\n" + "    g()\n" * 70), [(1, 71, "f")])


if __name__ == "__main__":
    unittest.main()
