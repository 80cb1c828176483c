"""The CUDA plugin without a GPU: code that nvcc generates, one-line errors for a missing GPU, and CPU runs that load none of it."""

import pathlib
import re
import subprocess
import tempfile
import unittest

from dtrain_harness import BUILD, DTRAIN, SOURCE, USAGE, final_model, front_end_alone, run
from messages import assert_names

DEVICE = 13
PLUGIN = BUILD / "lib" / "libdtrain_cuda.so"
HAS_DRIVER = pathlib.Path("/dev/nvidiactl").exists()
SMALL = ["--width", "32", "--heads", "2", "--neurons", "64", "--layers", "2", "--seq-len", "16", "--global-batch", "2", "--steps", "1"]
CUDA = ("libdtrain_cuda", "libtorch_cuda", "libc10_cuda", "libnccl", "libcublas", "libcudnn", "libcuda.so")


@unittest.skipUnless(PLUGIN.exists(), "needs CUDA's toolkit: nvcc of CUDA 13.0 and nccl.h")
class Plugin(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.text = self.folder / "text.txt"
        self.text.write_text("To be, or not to be, that is the question. " * 50)

    def train(self, *arguments, **options):
        return run(DTRAIN, "train", "--data", self.text, "--run-dir", self.folder / "run", *SMALL, *arguments, **options)

    @unittest.skipIf(HAS_DRIVER, "needs a machine without GPUs")
    def test_a_missing_driver_or_library_is_one_line(self):
        for device in ("cuda", "cuda:9"):
            result = self.train("--device", device, status=DEVICE)
            (line,) = [line for line in result.stderr.splitlines() if "error" in line]
            assert_names(line, "dtrain: error", "libcuda.so.1", "--device cpu")
            self.assertNotIn("undefined symbol", line)
            self.assertFalse((self.folder / "run" / "metrics.jsonl").exists())

    @unittest.skipIf(HAS_DRIVER, "needs a machine without GPUs")
    def test_auto_is_the_cpu_without_a_driver(self):
        self.train("--device", "auto")
        self.assertTrue(final_model(self.folder / "run").exists())

    @unittest.skipIf(HAS_DRIVER, "needs a machine without GPUs")
    def test_doctor_says_that_there_is_no_gpu(self):
        self.assertRegex(run(DTRAIN, "doctor").stdout, r"(?m)^devices +cpu; plugins: .*cuda.*; .*\bno GPU\b")

    def test_other_names_of_a_gpu_lead_to_cuda(self):
        for name, meant in (("gpu", r".*cuda\?"), ("gpu:1", r".*cuda:1\?"), ("mps", "")):
            error = self.train("--device", name, status=USAGE).stderr
            self.assertRegex(error, rf'\Adtrain: error: --device: found "{name}", .* auto, cpu, cuda{meant}\n\Z')

    def test_a_build_without_the_plugin_says_so(self):
        result = run(front_end_alone(self.folder), "train", "--data", self.text, "--device", "cuda", status=USAGE)
        assert_names(result.stderr, "dtrain: error", "--device", '"cuda"', "auto, cpu")

    def test_a_cpu_run_loads_no_cuda_library(self):
        for arguments in (["--help"], ["train", "--data", self.text, "--run-dir", self.folder / "run", "--device", "cpu", *SMALL]):
            run(DTRAIN, *arguments, environment={"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": str(self.folder / "loaded")})
            names = "".join(path.read_text(errors="replace") for path in self.folder.glob("loaded.*"))
            self.assertIn("libc.so", names)
            for library in CUDA:
                self.assertNotIn(library, names, arguments)

    def test_it_names_the_libraries_that_it_loads(self):
        names = subprocess.run(["readelf", "-d", PLUGIN], capture_output=True, text=True, check=True).stdout
        for library in ("libtorch_cuda.so", "libc10_cuda.so", "libcudart.so.13", "libnccl.so.2", "libdtrain.so"):
            self.assertIn(f"[{library}]", names)
        self.assertNotIn(str(BUILD), names)
        self.assertIn("(RPATH)", names)  # libraries in LibTorch's folder take precedence over LD_LIBRARY_PATH


class Header(unittest.TestCase):
    """The plugin is compiled with the header of LibTorch's NCCL version, wherever that is installed."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def make(self, name, version):
        (self.folder / name).mkdir()
        (self.folder / name / "nccl.h").write_text(f"#define NCCL_VERSION(X,Y,Z) 0\n#define NCCL_VERSION_CODE {version}\n")

    def found(self, *names):
        script = self.folder / "find.cmake"
        folders = " ".join(f'"{self.folder / name}"' for name in names)
        script.write_text(f'include("{SOURCE}/cmake/Nccl.cmake")\ndtrain_find_nccl(nccl {folders})\n'
                          'message("${nccl}|${nccl_REASON}")\n')
        result = subprocess.run(["cmake", "-P", script], capture_output=True, text=True, check=True)
        return result.stderr.strip().replace(f"{self.folder}/", "").split("|")

    def test_the_header_that_fits_is_taken_wherever_it_is(self):
        self.make("wheel", 22809)
        self.make("toolkit", 23007)
        self.make("fitting-toolkit", 22809)
        self.assertEqual(self.found("wheel", "toolkit"), ["wheel", ""])
        self.assertEqual(self.found("toolkit", "wheel"), ["wheel", ""])
        self.assertEqual(self.found("absent", "fitting-toolkit"), ["fitting-toolkit", ""])

    def test_what_does_not_fit_is_named(self):
        self.make("toolkit", 23007)
        found, reason = self.found("absent", "toolkit")
        self.assertEqual(found, "nccl-NOTFOUND")
        assert_names(reason, "NCCL 2.28.9", "toolkit/nccl.h")
        assert_names(self.found("absent", "missing")[1], "nccl.h", "absent, missing")


# Minimum numbers of 16-byte loads and stores; the compiler may repeat some.
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
class NvccKernels(unittest.TestCase):
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
        """Instructions of the one kernel whose name contains `name`."""
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
