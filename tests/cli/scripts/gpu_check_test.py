"""The checks of scripts/gpu_check.sh, rehearsed on the fake accelerator: they pass where all is well, and notice what is not."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import types
import unittest

from dtrain_harness import BUILD, DTRUN, SOURCE, FolderTest, run
from messages import assert_names

sys.path[:0] = (str(SOURCE / "scripts"), str(SOURCE / "scripts" / "gpu_check"))
import gpu_check  # noqa: E402
import gpu_check_bench  # noqa: E402
import gpu_check_correct  # noqa: E402
from gpu_check_session import Failed, Session  # noqa: E402

CHECK = SOURCE / "scripts" / "gpu_check.sh"
# At least one check of each kind is rehearsed. Of the others, dtrain reads the flags.
REHEARSED = ("golden", "parity float64", "parity float16", "chunks bfloat16", "offload all", "resume", "graphs bf16", "fsdp grad-op",
             "3d dp 2", "tp bfloat16", "of memory", "killed rank", "refusals", "D 256")
NOT_REHEARSED = "D 256 kernels"  # there is no profiler for a device that is none
WITHOUT_TRAINING = r"golden.*|.*of memory|killed rank|refusals|peak|D \d+ (PyTorch|ratio|kernels).*"

# A dtrain that trains something else on a device.
LIAR = """#!/bin/sh
case "$*" in *"--device fake"*) exec {dtrain} "$@" --seed 2 ;; esac
exec {dtrain} "$@"
"""

# A dtrun that fails beside another.
LONELY = """#!/bin/sh
mkdir {folder}/alone || exit 99
{dtrun} "$@"
status=$?
rmdir {folder}/alone
exit $status
"""

# A Python whose PyTorch sees a GPU, and a CMake that builds nothing.
TORCH = """#!/bin/sh
case "$1" in
  -c) echo '{"torch": "2.11.0", "cuda": "13.0", "folder": "/t", "gpus": [{"name": "G", "memory": 1, "capability": "90"}]}' ;;
  *) exec /usr/bin/python3 "$@" ;;
esac
"""
CMAKE = """#!/bin/sh
echo "$*" >>{folder}/built
"""

# A Python whose PyTorch trains so many tokens a second, beside a GPU that does 1e12 operations.
PEER = """#!/bin/sh
case "$1" in
  -c) echo 1e12 ;;
  */bench_peer.py) echo '{{"tokens_per_s": {{"median": {rate}}}, "peak_mib": 5}}' ;;
  *) exec /usr/bin/python3 "$@" ;;
esac
"""


class FlagsOnly(Session):
    """Trains once, in float16. Each later run ends after dtrain has read its flags, and has the outcome of the first."""

    outcome = None

    def train(self, *flags, ranks=1, **_):
        if self.outcome is None:
            self.outcome = super().train(*flags, ranks=ranks)
        self.run(self.command(*flags, "--print-config", ranks=ranks))
        return self.outcome


class Rehearsal(FolderTest):
    def check(self, *flags, built=BUILD, status=0):
        """The printed report, and name -> result of gpu_check.json."""
        result = run(CHECK, "--device", "fake", "--built", built, "--out", self.folder, *flags, status=status, timeout=900)
        report = json.loads((self.folder / "gpu_check.json").read_text())
        return result.stdout, {entry["name"]: entry for entry in report["results"]}, report["figures"]

    def test_all_passes_on_the_fake_accelerator_and_checks_of_several_ranks_run_one_at_a_time(self):
        built = self.folder / "built"
        self.write_program(built / "bin/dtrun", LONELY.format(folder=self.folder, dtrun=DTRUN))
        for path in (BUILD / "bin").iterdir():
            if path.name != "dtrun":
                (built / "bin" / path.name).symlink_to(path)
        (built / "fake").symlink_to(BUILD / "fake")
        peer = self.write_program(self.folder / "python", PEER.format(rate=2))
        output, results, figures = self.check("--python", peer, *(word for text in REHEARSED for word in ("--only", text)), built=built)
        for name, entry in results.items():
            with self.subTest(name):
                self.assertEqual(entry["outcome"], "SKIP" if name == NOT_REHEARSED else "PASS", entry["detail"])
        rate = figures["256"]["dtrain"]["tokens_per_second"]
        self.assertIn(f"{rate / 2:.2f} times", results["D 256 ratio"]["detail"])
        self.assertRegex(output, r"D 256 dtrain +[\d,]+ +- ")
        self.assertRegex(output, r"D 256 PyTorch eager +2 +- +5 MiB +1\.00")
        self.assertIn(f"gpu_check: {len(results) - 1} passed, 0 failed, 1 skipped, 0 ", output)

    def test_dtrain_reads_the_flags_of_every_check(self):
        session = FlagsOnly(build=BUILD, program=BUILD / "fake/bin/dtrain", device="fake", num_devices=gpu_check.FAKE_DEVICES, quick=True,
                            folder=self.folder, log=self.folder / "log", ends=time.monotonic() + 600)
        session.train("--dtype", "float16", *gpu_check_correct.SGD, "--steps", gpu_check_bench.WARMUP + gpu_check_bench.STEPS)
        for checks, _ in gpu_check.stages():
            for name, check in checks.items():
                if not re.fullmatch(WITHOUT_TRAINING, name):
                    with self.subTest(name):
                        check(session)

    def write_program(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def test_building_and_checking_are_two_calls(self):
        python = self.write_program(self.folder / "python", TORCH)
        self.write_program(self.folder / "programs/cmake", CMAKE.format(folder=self.folder))
        (self.folder / "modules/torch").mkdir(parents=True)
        (self.folder / "modules/torch/__init__.py").touch()
        environment = {**os.environ, "PATH": f"{self.folder}/programs:{os.environ['PATH']}", "PYTHONPATH": str(self.folder / "modules")}
        build, out = self.folder / "release", self.folder / "out"
        words = [CHECK, "--python", python, "--built", build, "--out", out]
        refused = run(*words, status=2, environment=environment)
        assert_names(refused.stderr, f"{build}/bin/dtrain", "--build-only")
        only_build = [("build", "PASS")]
        for flags, expected in ((["--build-only", "--deps", self.folder], only_build),
                                (["--only", "D 256 ratio"], [*only_build, ("D 256 ratio", "SKIP")])):
            (out / "gpu_check.json").unlink(missing_ok=True)
            run(*words, *flags, environment=environment)
            results = json.loads((out / "gpu_check.json").read_text())["results"]
            self.assertEqual([(entry["name"], entry["outcome"]) for entry in results], expected)
            self.write_program(build / "bin/dtrain", "")
        configured, built = (self.folder / "built").read_text().splitlines()
        self.assertIn(f"-B {build}", configured)
        self.assertIn(f"--build {build}", built)
        self.assertEqual([path.name for path in out.iterdir()], ["gpu_check.json"])

    def test_another_result_on_the_device_is_a_failure(self):
        (self.folder / "built").mkdir()
        (self.folder / "built/bin").symlink_to(BUILD / "bin")
        self.write_program(self.folder / "built/fake/bin/dtrain", LIAR.format(dtrain=BUILD / "fake/bin/dtrain"))
        output, results, _ = self.check("--only", "parity float64", "--only", "peak", built=self.folder / "built", status=1)
        self.assertEqual(results["parity float64"]["outcome"], "FAIL")
        self.assertIn("beyond 1e-09", results["parity float64"]["detail"])
        self.assertEqual(results["peak"]["outcome"], "SKIP")  # without a PyTorch
        self.assertIn("1 passed, 1 failed, 1 skipped", output)

    def test_the_peer_must_not_be_faster(self):
        def ratio(own, peer):
            figures = {256: {"dtrain": {"tokens_per_second": own}, "PyTorch eager": {"tokens_per_second": peer}}}
            return gpu_check_bench.ratio(types.SimpleNamespace(figures=figures), 256)

        self.assertIn("2.00 times", ratio(6, 3))
        with self.assertRaisesRegex(Failed, r"\b0\.50 "):
            ratio(3, 6)

    def test_the_kernels_of_a_step_are_what_a_longer_run_has_more(self):
        short = {"kernels": {"nvjet_tst": [4, 1.0], "set_up": [1, 9.0]}, "waits": 10}
        long = {"kernels": {"nvjet_tst": [8, 4.0], "set_up": [1, 9.0], "dtrain::norm": [2, 1.0]}, "waits": 12}
        found = gpu_check_bench.of_a_step(short, long, 2)
        self.assertEqual(found["shares"], {"matrix products": 0.75, "dtrain's own": 0.25, "other": 0})
        self.assertEqual((found["busy_seconds"], found["host_waits"]), (2, 1))

    def test_packed_libraries_link_into_a_shared_library(self):
        run(CHECK, "--python", sys.executable, "--pack", self.folder / "deps")
        libraries = sorted((self.folder / "deps/lib").iterdir())
        self.assertEqual(len(libraries), 3)
        run("c++", "-shared", "-o", self.folder / "all.so", "-Wl,--whole-archive", *libraries, "-Wl,--no-whole-archive")

    def test_what_cannot_begin_is_one_line(self):
        bare = self.write_program(self.folder / "bare", "#!/bin/sh\nexec /usr/bin/python3 -S \"$@\"\n")
        for flags, part in ((["--python", "/nope"], "--python /nope"), (["--python"], "--python"), (["--python", "/bin/false"], "--python /bin/false"),
                            (["--device", "fake", "--built", BUILD, "--out", "/dev/null/x"], "--out /dev/null/x"), ([], "--python"),
                            (["--device", "fake", "--built", BUILD, "--build-only"], "--device fake"),
                            (["--python", bare, "--build-only"], f"--python {bare}"),
                            (["--device", "fake", "--built", BUILD, "--only", "chunk float"], "--only chunk float"),
                            (["--device", "fake", "--built", "/nope"], "/nope/fake/bin/dtrain")):
            result = run(CHECK, *flags, status=2)
            self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
            assert_names(result.stderr, part)
            self.assertEqual(result.stdout, "")

    def test_an_early_end_leaves_no_program_and_no_folder(self):
        environment = {**os.environ, "TMPDIR": str(self.folder)}
        for number in (signal.SIGINT, signal.SIGTERM):
            with subprocess.Popen([CHECK, "--device", "fake", "--built", BUILD, "--out", self.folder / "out", "--only", "killed rank"],
                                  env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
                deadline = time.monotonic() + 120
                while not list(self.folder.glob("dtrain-gpu-check-*/*/run/metrics.jsonl")):
                    self.assertLess(time.monotonic(), deadline)
                    time.sleep(0.02)
                process.send_signal(number)
                error = process.communicate(timeout=120)[1]
            self.assertEqual(process.returncode, 128 + number)
            self.assertEqual(error.splitlines()[-1], f"gpu_check.sh: ended by {number.name}")
            report = json.loads((self.folder / "out/gpu_check.json").read_text())
            self.assertEqual([entry["name"] for entry in report["results"]], ["build"])
            self.assertEqual(list(self.folder.glob("dtrain-gpu-check-*")), [])
            deadline = time.monotonic() + 120
            while left := self.programs_of_the_folder():
                self.assertLess(time.monotonic(), deadline, left)
                time.sleep(0.05)

    def programs_of_the_folder(self):
        """Command lines of running programs that name this test's folder."""
        lines = []
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                pass
        return [line for line in lines if str(self.folder) in line]

    def test_folders_are_those_of_the_caller(self):
        (self.folder / "a b").mkdir()
        (self.folder / "a b" / "gpu_check.json").write_text("stale")
        self.write_program(self.folder / "a b" / "python", "#!/bin/sh\nexec /usr/bin/python3 \"$@\"\n")
        for flag in (["--python", "a b/python"], ["--python=a b/python"]):
            result = run(CHECK, *flag, "--device", "fake", "--built", BUILD, "--out", "a b", "--minutes", "0", status=1, cwd=self.folder)
            # What there was no time for is no success.
            results = json.loads((self.folder / "a b" / "gpu_check.json").read_text())["results"]
            self.assertEqual({entry["outcome"] for entry in results}, {"LATE"})
            self.assertRegex(result.stdout, r"\b0 passed, 0 failed, ")


if __name__ == "__main__":
    unittest.main()
