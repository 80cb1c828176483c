"""TORCHELASTIC_ERROR_FILE: dtrain leaves the reason of its failure where torchrun, and whoever started it, look for it."""

import json
import subprocess
import sys
import time
import unittest

from dtrain_harness import DTRAIN, DTRUN, SOURCE, FolderTest, run

PYTHON = SOURCE / ".deps" / "python" / "bin" / "python"
READ = """
import sys
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
print(ChildFailedError("dtrain", {0: ProcessFailure(local_rank=0, pid=1, exitcode=2, error_file=sys.argv[1])}).format_msg())
"""


class ErrorFileTest(FolderTest):
    def test_of_ranks_under_dtrun(self):
        before = int(time.time())
        result = run(DTRUN, "-n", 2, "--log-dir", self.folder, "--", DTRAIN, "--wrong-flag", status=2)
        files = sorted(self.folder.glob("*/attempt_0/*/error.json"))
        self.assertEqual(2, len(files))
        for file in files:
            self.assertEqual(0o600, file.stat().st_mode & 0o777)
            message = json.loads(file.read_text())["message"]
            self.assertIn("dtrain: error: ", message["message"])
            self.assertIn("--wrong-flag", message["message"])
            self.assertIn(message["message"], result.stderr)
            self.assertGreaterEqual(int(message["extraInfo"]["timestamp"]), before)

    def test_a_success_leaves_none(self):
        file = self.folder / "error.json"
        run(DTRAIN, "--version", environment={"TORCHELASTIC_ERROR_FILE": str(file)})
        self.assertFalse(file.exists())

    def test_a_link_is_not_followed(self):
        target, link = self.folder / "target", self.folder / "link"
        target.write_text("precious")
        link.symlink_to(target)
        run(DTRAIN, "--wrong-flag", status=2, environment={"TORCHELASTIC_ERROR_FILE": str(link)})
        self.assertEqual("precious", target.read_text())

    def test_torch_shows_it(self):
        file = self.folder / "error.json"
        run(DTRAIN, "--data", self.folder / "nowhere", "--run-dir", self.folder / "run", status=3,
            environment={"TORCHELASTIC_ERROR_FILE": str(file)})
        shown = subprocess.run([PYTHON, "-c", READ, file], capture_output=True, text=True, check=True).stdout
        self.assertRegex(shown, "dtrain: error: .*nowhere")


if __name__ == "__main__":
    sys.exit(0 if unittest.main(exit=False).result.wasSuccessful() else 1)
