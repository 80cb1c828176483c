"""The sizes of CONTRIBUTING.md: no file over 500 lines, no function over 60, no class outside tests/ over 25 members."""

import ast
import collections
import json
import os
import pathlib
import re
import subprocess
import tempfile
import textwrap
import unittest

SOURCE = pathlib.Path(os.environ["DTRAIN_SOURCE_DIR"])
FOLDERS = ("apps", "cmake", "launcher", "lib", "plugins", "scripts", "tests", ".ci")
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_MEMBERS = 25

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


def members_of_classes(headers):
    """The number of data and function members of each class that these files define, by its qualified name."""
    tags = subprocess.run(
        ["ctags-universal", "-L", "-", "-f", "-", "--output-format=json", "--languages=C++", "--kinds-C++=mpf", "--fields=+n"],
        input="\n".join(map(str, headers)), capture_output=True, text=True, check=True).stdout
    members = collections.defaultdict(set)  # overloads count one by one: by line
    for tag in map(json.loads, tags.splitlines()):
        name, scope = tag["name"], tag.get("scope", "")
        is_special = name == scope.split("::")[-1] or name.startswith(("~", "operator"))
        if tag.get("scopeKind") in ("class", "struct") and not is_special:
            members[scope].add((name, tag["line"]))
    return {scope: len(names) for scope, names in members.items()}


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


    def test_classes(self):
        members = members_of_classes(path for path in source_files()
                                     if path.suffix == ".h" and SOURCE / "tests" not in path.parents)
        self.assertGreater(len(members), 300, "this test must have found the classes")
        self.assertEqual({name: count for name, count in members.items() if count > MAX_MEMBERS}, {})


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

    def test_members(self):
        with tempfile.NamedTemporaryFile("w", suffix=".h") as header:
            header.write(textwrap.dedent("""
                namespace a {
                class S : public B {
                 public:
                  explicit S(int x) : x_(x) {}
                  ~S() override;
                  bool operator==(const S&) const;
                  [[nodiscard]] int f() const { return x_; }
                  int f(int);
                  struct T { int u; double v; };
                 private:
                  template <typename W> W g(W w);
                  int x_ = 0, y_{1};
                  std::function<void(int)> h_;
                };
                }
                """))
            header.flush()
            self.assertEqual(members_of_classes([header.name]), {"a::S": 6, "a::S::T": 2})

    def test_length(self):
        text = "void f() {\n" + "  g();\n" * 70 + "}\n"
        self.assertEqual(functions_of_cpp(text), [(1, 72, "void f()")])
        self.assertEqual(functions_of_python("def f():\n" + "    g()\n" * 70), [(1, 71, "f")])


if __name__ == "__main__":
    unittest.main()
