"""GPUs without one: the plugin is built, and what it lacks on this machine is told in one line; a CPU's run loads none of it."""

import pathlib
import subprocess
import tempfile
import unittest

from dtrain_harness import BUILD, DTRAIN, SOURCE, USAGE, final_model, front_end_alone, run
from messages import assert_names

DEVICE = 13
PLUGIN = BUILD / "lib" / "libdtrain_cuda.so"
HAS_DRIVER = pathlib.Path("/dev/nvidiactl").exists()
SMALL = ["--width", "32", "--heads", "2", "--neurons", "64", "--levels", "2", "--seq-len", "16", "--global-batch", "2", "--steps", "1"]
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
        self.assertIn("(RPATH)", names)  # the libraries of LibTorch's folder come first, whatever LD_LIBRARY_PATH says


class Header(unittest.TestCase):
    """The plugin is compiled with the header of the NCCL that LibTorch was built with, wherever that lies."""

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


if __name__ == "__main__":
    unittest.main()
