"""The layers of docs/internals/architecture.md hold: who may include whom, what headers must include, and where the outside world may be
touched."""

import os
import pathlib
import re
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ["DTRAIN_SOURCE_DIR"])

LAYERS = [  # lowest first; modules of one layer do not see each other
    {"base"},
    {"config", "net"},
    {"comm"},
    {"device", "kernels", "mesh", "param"},
    {"model", "data", "optim", "metrics", "checkpoint", "report"},
    {"parallel"},
    {"job"},
    {"train", "planner"},
    {"commands"},
    {"runtime"},
]
PARALLEL = [  # the folders of parallel, whose own files are below them; here neighbours do not see each other either
    {""},
    {"compress", "pipeline"},
    {"data", "tensor"},
    {"engine"},
    {"plan"},
]
WITHOUT_LIBTORCH = ("lib/dtrain/base/", "lib/dtrain/config/", "lib/dtrain/data/", "lib/dtrain/checkpoint/format/", "lib/dtrain/checkpoint/store/",
                    "lib/dtrain/parallel/pipeline/", "lib/dtrain/report/", "lib/dtrain/net/", "lib/dtrain/comm/internal/rendezvous/", "lib/dtrain/comm/internal/host/",
                    "launcher/", "apps/")
LIBTORCH = re.compile(r"(ATen|torch|c10|caffe2)/")
TRANSPORT = re.compile(r"(torch/csrc/distributed|gloo)/")  # c10d and gloo
STANDINS = "lib/dtrain/comm/internal/gloo/shim/"  # named as the headers that they stand in for
ENVIRONMENT = ("lib/dtrain/base/rank_env.", "launcher/environment.")  # of this process; what dtrun hands to ranks
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]', re.MULTILINE)
ENVIRONMENT_USE = re.compile(r"\b(?:secure_getenv|getenv|setenv|putenv|unsetenv|environ)\b")
# Constexpr functions of <bit> that are builtins of GCC: nvcc 13.0 makes constants of them in code for GPUs, without a word.
BUILTINS = re.compile(r"std::(?:count[lr]_(?:zero|one)|popcount|bit_(?:width|ceil|floor)|has_single_bit)\b|__builtin_\w+")
FIXED_WIDTH = re.compile(r"std::u?int(?:8|16|32|64|ptr|max)_t\b")
ENDS_PROCESS = re.compile(r"std::(?:cerr|cout|clog)\b|(?<![\w.>])(?:_?exit|_Exit|quick_exit)\s*\(")
MAY_END_PROCESS = ("apps/", "launcher/", "lib/dtrain/base/")


def without_comments_and_strings(text):
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"', re.DOTALL)
    return pattern.sub(" ", text)


def module_of(name):
    """The module of lib/dtrain/... or of an included dtrain/..., e.g. "comm"; None for what is no module."""
    match = re.match(r"(?:lib/)?dtrain/(\w+)[/.]", name)
    return match.group(1) if match else None


def owner_of(header):
    """The folder whose files alone may include this header, e.g. "dtrain/comm/"; None for a public one."""
    owner, internal, _ = header.partition("internal/")
    return owner if internal else None


def layer_of(module, layers=LAYERS):
    return next((level for level, modules in enumerate(layers) if module in modules), None)


def folder_of_parallel(name):
    match = re.match(r"(?:lib/)?dtrain/parallel/(?:(.+?)/)?(?:internal/)?[^/]+$", name)
    return (match.group(1) or "") if match else None


class Tree:
    def __init__(self, root):
        self.root = pathlib.Path(root)
        files = [path for folder in ("lib", "apps", "launcher") for path in sorted((self.root / folder).rglob("*"))
                 if path.suffix in (".h", ".cpp")]
        self.text = {path.relative_to(self.root).as_posix(): path.read_text() for path in files}
        self.includes = {name: INCLUDE.findall(text) for name, text in self.text.items()}

    def closure(self, name):
        """All that a file includes, through headers of ours as well."""
        found, queue = set(), [name]
        while queue:
            for header in self.includes.get(queue.pop(), []):
                ours = "lib/" + header if header.startswith("dtrain/") else header
                if ours not in found:
                    found.add(ours)
                    queue.append(ours)
        return found

    def violations(self):
        found = []
        for name, text in self.text.items():
            for problem in (*self.wrong_includes(name), *self.wrong_uses(name, text)):
                found.append(f"{name}: {problem}")
        for folder in ("lib", "apps", "launcher", "tests"):
            for path in (self.root / folder).rglob("*"):
                relative = path.relative_to(self.root).as_posix()
                if path.is_dir() and path.name in ("utils", "util", "common", "misc") and STANDINS not in relative:
                    found.append(f"{relative}: a folder's name says what it is about")
        return found

    def wrong_includes(self, name):
        own = module_of(name)
        if own is not None and layer_of(own) is None:
            yield f"module {own} is in no layer; add it to tests/unit/layers_test.py and docs/internals/architecture.md"
        for header in self.includes[name]:
            if header.startswith(".."):
                yield f"includes {header}; write the path from lib/"
            owner = owner_of(header)
            if owner is not None and not name.removeprefix("lib/").startswith(owner):
                yield f"includes {header}, which belongs to {owner}"
            target = module_of(header)
            if header.startswith("launcher/") and not name.startswith("launcher/"):
                yield f"includes {header}, which belongs to dtrun"
            if own == target == "parallel":
                yield from self.wrong_folder(folder_of_parallel(name), header)
            if target is None or target == own:
                continue
            if name.startswith("launcher/") and target not in ("base", "net"):
                yield f"includes {header}, but the launcher knows base and net alone"
            elif layer_of(target) is None:
                yield f"includes {header}, which is in no layer"
            elif own is not None and layer_of(own) is not None and layer_of(target) >= layer_of(own):
                yield f"includes {header}, not of a lower layer"
        if not name.startswith("lib/dtrain/comm/"):
            yield from (f"includes {header}, which only comm may know" for header in self.includes[name]
                        if TRANSPORT.match(header))
        if name.startswith(WITHOUT_LIBTORCH):
            yield from (f"sees LibTorch through {header}" for header in self.closure(name) if LIBTORCH.match(header))

    def wrong_folder(self, own, header):
        target = folder_of_parallel(header)
        if own != target and layer_of(target, PARALLEL) >= layer_of(own, PARALLEL):
            yield f"includes {header}, which is in no lower folder of parallel"

    def wrong_uses(self, name, text):
        code = without_comments_and_strings(text)
        if not name.startswith(ENVIRONMENT):
            yield from (f"uses {use}: see base/rank_env" for use in ENVIRONMENT_USE.findall(code))
        # Other headers happen to include it with GCC 12; with later ones they do not.
        if name.endswith(".h") and FIXED_WIDTH.search(code) and "cstdint" not in self.closure(name):
            yield "names integers without <cstdint>"
        if not name.startswith(MAY_END_PROCESS):
            yield from (f"has {use}; throw base::Error" for use in ENDS_PROCESS.findall(code))


def builtins_for_gpus(root, name, seen):
    """Uses of BUILTINS in a file that nvcc compiles, and in what it includes of ours."""
    path = next((each for each in (root / name, root / "lib" / name, root / "plugins" / name) if each.is_file()), None)
    if path is None or path in seen:
        return
    seen.add(path)
    text = path.read_text()
    yield from (f"{name} uses {use}" for use in BUILTINS.findall(without_comments_and_strings(text)))
    for header in INCLUDE.findall(text):
        yield from builtins_for_gpus(root, header, seen)


class Kernels(unittest.TestCase):
    def test_they_use_no_builtins_of_another_compiler(self):
        seen = set()
        self.assertEqual(list(builtins_for_gpus(SOURCE, "plugins/cuda/launch.cu", seen)), [])
        self.assertIn(SOURCE / "lib/dtrain/comm/tree_order.h", seen)

    def test_a_use_in_a_header_is_noticed(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "lib").mkdir()
            (root / "a.cu").write_text('#include "b.h"\n')
            (root / "lib/b.h").write_text("// std::popcount is none\nint a(unsigned x) { return std::countr_zero(x); }\n")
            self.assertEqual(list(builtins_for_gpus(root, "a.cu", set())), ["b.h uses std::countr_zero"])


class TheTree(unittest.TestCase):
    def test_it_keeps_the_layers(self):
        tree = Tree(SOURCE)
        self.assertGreater(len(tree.text), 100, "this test must have found the sources")
        self.assertEqual(tree.violations(), [])


class TheTestItself(unittest.TestCase):
    """Each rule, broken on purpose in a small tree, is noticed, by one message that names the file."""

    def violations(self, files):
        with tempfile.TemporaryDirectory() as folder:
            for path, text in files.items():
                file = pathlib.Path(folder) / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            return Tree(folder).violations()

    def test_what_is_right_passes(self):
        self.assertEqual(self.violations({
            "lib/dtrain/base/error.h": "// getenv(\"X\") and std::cerr in words only\n",
            "lib/dtrain/base/rank_env.cpp": "const char* value = std::getenv(name);\n",
            "lib/dtrain/base/log.cpp": "std::cerr << 1;\n",
            "lib/dtrain/comm/world.h": '#include "dtrain/base/error.h"\n#include <torch/csrc/distributed/c10d/Work.hpp>\n',
            "lib/dtrain/comm/internal/gloo/shim/gloo/common/error.h": "",
            "lib/dtrain/mesh/mesh.h": '#include "dtrain/comm/world.h"\nvoid f() { on_exit(); group.exit(); }\n',
            "lib/dtrain/comm/shm/shm.h": '#include "dtrain/comm/internal/segment.h"\n',
            "lib/dtrain/comm/internal/segment.h": "",
            "launcher/main.cpp": '#include "dtrain/base/error.h"\n#include "launcher/job.h"\nint f() { _exit(1); }\n',
        }), [])

    def test_what_is_wrong_is_noticed(self):
        inside = (("", "data/b.h"), ("data/", "tensor/b.h"), ("engine/", "plan/b.h"), ("pipeline/", "data/b.h"))
        for files in (
                # The first file of each is the one to be named.
                {"launcher/a.h": "#include <string>\nstd::int64_t step = 0;\n",
                 "launcher/b.h": '#include "launcher/c.h"\nstd::uint8_t x;\n', "launcher/c.h": "#include <cstdint>\n"},
                {"lib/dtrain/comm/a.h": '#include "dtrain/model/b.h"\n'},  # upwards
                {"lib/dtrain/optim/a.h": '#include "dtrain/data/b.h"\n'},  # a neighbour
                {"lib/dtrain/job/a.h": '#include "dtrain/comm/internal/b.h"\n'},  # private
                {"lib/dtrain/parallel/engine/a.h": '#include "dtrain/parallel/data/internal/b.h"\n'},
                *({f"lib/dtrain/parallel/{folder}a.h": f'#include "dtrain/parallel/{header}"\n'} for folder, header in inside),
                {"launcher/a.cpp": '#include "dtrain/config/config.h"\n'},
                *({folder + "a.cpp": "#include <ATen/Tensor.h>\n"} for folder in WITHOUT_LIBTORCH),
                {"apps/dtrain/main.cpp": '#include "dtrain/param/arena.h"\n',
                 "lib/dtrain/param/arena.h": "#include <ATen/ATen.h>\n"},
                {"lib/dtrain/parallel/a.h": "#include <torch/csrc/distributed/c10d/Work.hpp>\n"},
                {"lib/dtrain/parallel/a.h": "#include <gloo/context.h>\n"},
                {"lib/dtrain/magic/a.h": ""},  # a module in no layer
                *({folder + "/a.h": ""} for folder in ("lib/dtrain/base/utils", "apps/common", "tests/misc")),
                {"lib/dtrain/comm/a.cpp": 'auto x = std::getenv("X");\n'},
                *({"lib/dtrain/train/a.cpp": line + "\n"} for line in ("std::exit(1);", "  _exit(2);", 'std::cerr << "no";'))):
            with self.subTest(files=files):
                found = self.violations(files)
                self.assertEqual(len(found), 1, found)
                self.assertTrue(found[0].startswith(next(iter(files)).removesuffix("/a.h").removesuffix("a.cpp")), found)


if __name__ == "__main__":
    unittest.main()
