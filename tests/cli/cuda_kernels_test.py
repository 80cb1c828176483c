"""What nvcc makes of the plugin's kernels: no local memory, moves of 16 bytes, no division by numbers that the host knows."""

import pathlib
import re
import tempfile
import unittest

from dtrain_harness import BUILD, SOURCE, run

PLUGIN = BUILD / "lib" / "libdtrain_cuda.so"
# Loads and stores of 16 bytes, at least: the compiler may repeat some.
MOVES = {
    "run_dropoutIfE": (2, 2),
    "run_dropoutIdE": (4, 4),
    "run_dropoutIN3c108BFloat16E": (1, 1),
    "run_dropoutIN3c104HalfE": (1, 1),
    "RopeBodyIN3c108BFloat16E": (6, 4),
    "RopeBodyIN3c104HalfE": (6, 4),
    "TreeReduceBodyIfLb0ELi6E": (2, 1),
    "TreeReduceBodyIdLb0ELi6E": (2, 1),
    "TreeReduceBodyIN3c108BFloat16ELb0ELi6E": (2, 1),
    "TreeReduceBodyIN3c104HalfELb0ELi6E": (2, 1),
    "TreeReduceBodyIfLb0ELi15E": (2, 1),
    "AdamWBodyIfE": (4, 3),
    "AdamWBodyIdE": (4, 3),
    "SgdBodyIfE": (3, 2),
    "SgdBodyIdE": (3, 2),
    "ScaleBodyIfE": (1, 1),
    "ScaleBodyIdE": (1, 1),
}
WIDE = r"\.global(?:\.nc)?\.(?:v4\.[ubf]32|v2\.[ubf]64)\b"


def cached(name):
    """A variable of the build's CMake cache."""
    return re.search(rf"(?m)^{name}:\w+=(.*)$", (BUILD / "CMakeCache.txt").read_text())[1]


@unittest.skipUnless(PLUGIN.exists(), "needs CUDA's toolkit: nvcc of CUDA 13.0 and nccl.h")
class Kernels(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        kept = pathlib.Path(folder.name)
        result = run(cached("DTRAIN_NVCC"), "-std=c++20", "-O3", "-arch=sm_90", "-fmad=false", "--expt-relaxed-constexpr",
                     "--resource-usage", "--keep", "--keep-dir", kept, f"-I{SOURCE}/lib", f"-I{SOURCE}/plugins",
                     "-isystem", f"{cached('DTRAIN_TORCH_DIR')}/include", "-cubin", SOURCE / "plugins" / "cuda" / "launch.cu",
                     "-o", kept / "launch.cubin")
        cls.usage = result.stdout + result.stderr
        text = (kept / "launch.ptx").read_text()
        cls.kernels = dict(re.findall(r"(?ms)^(?:\.visible )?\.entry (\w+)\(.*?^\{(.*?)^\}", text))

    def code_of(self, name):
        """The instructions of the one kernel that has `name` in its own."""
        (code,) = [code for kernel, code in self.kernels.items() if name in kernel]
        return code

    def test_no_kernel_uses_local_memory(self):
        found = re.findall(r"Function properties for (\w+)\n +(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill", self.usage)
        self.assertEqual({name for name, *_ in found}, set(self.kernels))
        for name, *sizes in found:
            self.assertEqual(sizes, ["0", "0", "0"], name)

    def test_packs_are_moved_at_once(self):
        for name, (loads, stores) in MOVES.items():
            code = self.code_of(name)
            with self.subTest(name):
                self.assertGreaterEqual(len(re.findall("ld" + WIDE, code)), loads)
                self.assertGreaterEqual(len(re.findall("st" + WIDE, code)), stores)

    def test_no_index_is_divided(self):
        for name in MOVES:
            self.assertNotRegex(self.code_of(name), r"\b(div|rem)\.[us](32|64)", name)


if __name__ == "__main__":
    unittest.main()
