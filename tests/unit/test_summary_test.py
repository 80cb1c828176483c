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
           '<system-out>SKIPPED: no tmux here\n</system-out></testcase>')
SKIPS_INSIDE = ('<testcase name="cli.e" time="2" status="run"><system-out>SKIPPED: no strace here\n'
                'OK (skipped=3)</system-out></testcase>')


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
        self.assertEqual(lines[-2], "tests in these files: 284")

    def test_a_failure_is_named_and_decides_the_status(self):
        status, lines = self.summary(PASSED, FAILED)
        self.assertEqual((status, lines[-1]), (1, "1 passed, 1 failed"))
        self.assertIn("FAILED dist.b", lines)

    def test_a_test_that_could_not_be_started_has_failed(self):
        status, lines = self.summary(PASSED, NOT_STARTED)
        self.assertEqual((status, lines[-1]), (1, "1 passed, 1 failed"))

    def test_a_skip_is_told_with_its_reason(self):
        status, lines = self.summary(PASSED, SKIPPED)
        self.assertEqual((status, lines[-1]), (0, "1 passed, 0 failed, 1 skipped"))
        self.assertIn("SKIPPED cli.d: no tmux here", lines)

    def test_skips_inside_a_passing_file_are_told(self):
        _, lines = self.summary(SKIPS_INSIDE)
        self.assertIn("SKIPPED 3 inside cli.e: no strace here", lines)

    def test_where_everything_is_installed_a_skip_is_a_failure(self):
        self.ci = "true"
        self.assertEqual(self.summary(PASSED)[0], 0)
        for skipped in (SKIPPED, SKIPS_INSIDE):
            status, lines = self.summary(PASSED, skipped)
            self.assertEqual(status, 1)
            self.assertIn("FAILED: a test was skipped, and CI=true says that none may be", lines)

    def test_nothing_run_is_a_failure(self):
        for cases in ([], [SKIPPED]):
            status, lines = self.summary(*cases)
            self.assertEqual((status, lines[-1][:18]), (1, "0 passed, 0 failed"))

    def test_missing_results_are_a_failure(self):
        self.assertEqual(self.run_on("/nonexistent.xml")[0], 1)


if __name__ == "__main__":
    unittest.main()
