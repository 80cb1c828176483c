"""The last lines that scripts/test.sh prints tell the truth about ctest's results."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SUMMARY = pathlib.Path(os.environ["DTRAIN_SOURCE_DIR"]) / "scripts" / "test_summary.py"

PASSED = '<testcase name="unit.a" time="1.5" status="run"><system-out>fine</system-out></testcase>'
FAILED = '<testcase name="dist.b" time="0.1" status="fail"><failure message=""/><system-out>no</system-out></testcase>'
NOT_STARTED = ('<testcase name="cli.c" time="0" status="notrun"><skipped message="Unable to find executable"/>'
               '<system-out>Unable to find executable</system-out></testcase>')
SKIPPED = ('<testcase name="cli.d" time="0" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/>'
           '<system-out>skipped: needs root: to mount\n</system-out></testcase>')
SKIPS_INSIDE = ('<testcase name="cli.e" time="2" status="run"><system-out>test_a (A.test_a) ... skipped "needs ptrace"\n'
                "test_b (A.test_b) ... skipped 'needs ptrace'\ntest_c (A.test_c) ... said\nskipped 'needs root: a'\n"
                'OK (skipped=3)</system-out></testcase>')
OF_CATCH = '<testcase name="dist.f" time="2" status="run"><system-out>  skipped: needs root: b\n</system-out></testcase>'
OF_GPUS = SKIPPED.replace("needs root: to mount", "needs CUDA's toolkit: nvcc")


COUNTED = ["All tests passed (40 assertions in 1 test case)", "All tests passed (57775 assertions in 271 test cases)",
           "test cases: 5 | 4 passed | 1 failed\nassertions: 9 | 8 passed | 1 failed", "Ran 6 tests in 3.142s", "fine"]


class Summary(unittest.TestCase):
    ci = ""

    def summary(self, *cases):
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
            file.write("<testsuite>" + "".join(cases) + "</testsuite>")
            file.flush()
            return self.run_on(file.name)

    def run_on(self, path):
        result = subprocess.run([sys.executable, SUMMARY, path], capture_output=True, text=True, check=False,
                                env={**os.environ, "CI": self.ci})
        return result.returncode, result.stdout.splitlines()

    def test_all_passed(self):
        status, lines = self.summary(PASSED, PASSED)
        self.assertEqual((status, lines[-1]), (0, "2 passed, 0 failed"))
        self.assertIn("unit 3", lines[-3])

    def test_the_tests_of_each_file_are_counted(self):
        _, lines = self.summary(SKIPPED, *(PASSED.replace("fine", text) for text in COUNTED))
        self.assertEqual(lines[-2].split()[-1], "284")

    def test_a_failure_is_named_and_decides_the_status(self):
        status, lines = self.summary(PASSED, FAILED)
        self.assertEqual((status, lines[-1]), (1, "1 passed, 1 failed"))
        self.assertIn("FAILED dist.b", lines)

    def test_a_test_that_could_not_be_started_has_failed(self):
        status, lines = self.summary(PASSED, NOT_STARTED)
        self.assertEqual((status, lines[-1]), (1, "1 passed, 1 failed"))

    def test_an_allowed_skip_is_reported_with_its_reason(self):
        status, lines = self.summary(PASSED, SKIPPED)
        self.assertEqual((status, lines[-1]), (0, "1 passed, 0 failed, 1 skipped"))
        self.assertIn("SKIPPED cli.d: needs root: to mount", lines)

    def test_skips_inside_a_passing_file_are_reported(self):
        status, lines = self.summary(SKIPS_INSIDE, OF_CATCH)
        self.assertEqual(status, 0)
        for line in ("SKIPPED in cli.e: needs ptrace (2 times)", "SKIPPED in cli.e: needs root: a", "SKIPPED in dist.f: needs root: b"):
            self.assertIn(line, lines)

    def test_a_skip_for_another_reason_or_for_none_is_a_failure(self):
        for skipped in (SKIPPED.replace("needs root", "no zsh"), SKIPPED.replace("skipped: needs root", "needs root"),
                        SKIPS_INSIDE.replace("needs root", "no zsh"), SKIPS_INSIDE.replace("skipped=3", "skipped=4")):
            status, lines = self.summary(PASSED, skipped)
            self.assertEqual(status, 1, skipped)
            self.assertEqual(len([line for line in lines if line.startswith("FAILED: ") and "tests/allowed_skips.txt" in line]), 1)

    def test_in_ci_all_but_gpus_can_be_had(self):
        self.ci = "true"
        self.assertEqual(self.summary(PASSED, OF_GPUS)[0], 0)
        for skipped in (SKIPPED, SKIPS_INSIDE, OF_CATCH):
            self.assertEqual(self.summary(PASSED, skipped)[0], 1)

    def test_nothing_run_is_a_failure(self):
        for cases in ([], [SKIPPED]):
            status, lines = self.summary(*cases)
            self.assertEqual((status, lines[-1][:18]), (1, "0 passed, 0 failed"))

    def test_missing_results_are_a_failure(self):
        self.assertEqual(self.run_on("/nonexistent.xml")[0], 1)


if __name__ == "__main__":
    unittest.main()
