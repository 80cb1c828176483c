"""An error that all ranks find is one line under dtrun, as it is without."""

import os
import sys

from dtrun_harness import DtrunTest, main

DTRAIN = os.path.join(os.environ["DTRAIN_BINARY_DIR"], "bin", "dtrain")
# Rank 1 fails while rank 0 still writes its notes.
LATE_NOTE = r"""
import os, signal, socket, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
link = socket.socket(fileno=int(os.environ["DTRUN_CONTROL_FD"]))
if os.environ["RANK"] == "1":
    while not os.path.exists("ready"):
        time.sleep(0.01)
    link.sendall(b"refused 3 dtrain: error: nothing there\n")
    os._exit(3)
open("ready", "w").close()
link.recv(4096)
print("a note", file=sys.stderr, flush=True)
os._exit(4)
"""
MODEL = ("--levels", "1", "--width", "8", "--heads", "1", "--neurons", "16", "--seq-len", "8", "--steps", "2")


class OneErrorTest(DtrunTest):
    limit = 60

    def setUp(self):
        super().setUp()
        (self.folder / "text").write_bytes(bytes(range(32, 127)) * 100)

    def refused(self, status, *arguments, ranks=4):
        """dtrain's one line, which nothing else stands beside."""
        process = self.dtrun("-n", str(ranks), "--", DTRAIN, *arguments, status=status)
        self.assertRegex(process.err, r"\Adtrain: error: [^\n]*\n\Z")
        return process.err

    def test_a_flag_that_one_rank_alone_has(self):
        text = '[ $RANK = 3 ] && exec "$0" --bad-flag; exec sleep 100'
        process = self.dtrun("-n", "4", "--", "sh", "-c", text, DTRAIN, status=2)
        self.assertRegex(process.err.splitlines()[-1], "failed: rank 3 .*--bad-flag")

    def test_data_that_is_missing(self):
        self.assertIn("nowhere", self.refused(3, "--strategy", "ddp", "--data", "nowhere", "--run-dir", "run", *MODEL))
        self.assertIn("nowhere", self.refused(3, "--data", "nowhere", ranks=2))  # without notes on what was not given

    def test_it_stands_behind_what_other_ranks_still_write(self):
        process = self.dtrun("-n", "2", "--", sys.executable, "-c", LATE_NOTE, status=3)
        self.assertEqual(["[0] a note", "dtrain: error: nothing there"], process.err.splitlines())

    def test_an_error_that_did_not_end_the_job_is_not_held_back(self):
        told = self.folder / "told"
        for then in ("echo progress 1 >&$DTRUN_CONTROL_FD", ":"):
            text = f'echo "error 2 dtrain: error: wrong" >&$DTRUN_CONTROL_FD; {then}; until [ -e told ]; do sleep 0.1; done'
            job = self.start("-n", "1", "--", "bash", "-c", text)
            self.assertEqual(job.stderr.readline(), "dtrain: error: wrong\n")
            told.touch()
            self.assertEqual(job.wait(60), 0)
            told.unlink()

    def test_a_run_folder_that_is_taken(self):
        (self.folder / "run").mkdir()
        (self.folder / "run" / "config.json").write_text("{}")
        self.assertIn("run", self.refused(2, "--strategy", "ddp", "--data", "text", "--run-dir", "run", *MODEL))


if __name__ == "__main__":
    main()
