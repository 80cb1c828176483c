"""How dtrun reports the end of a job: --report-file, TORCHELASTIC_ERROR_FILE, and one line for an error that all ranks find."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

from dtrain_harness import DTRAIN, DTRUN, PYTHON, FolderTest, run
from dtrun_harness import LIMIT, DtrunTest, children_of, main
from messages import assert_names


class ReportFile(DtrunTest):
    def test_the_report_file_tells_how_the_job_ended(self):
        file = self.folder / "report.json"
        text = "[ $RANK = 0 ] && exec sleep 60; printf 'progress 7\ncommitted 5 again\n' >&$DTRUN_CONTROL_FD; exit 9$RANK"
        self.assertEqual(91, self.dtrun("-n", "2", "--report-file", file, "--", "bash", "-c", text).returncode)
        found = json.loads(file.read_text())
        assert_names(found.pop("reason"), "rank 1", "status 91")
        expected = {"status": 91, "failed": True, "culprit": 1, "node": 0,
                    "host": socket.gethostname(), "step": 7, "checkpoint": 5, "resume": "again", "attempts": 1, "not_started_again": ""}
        self.assertEqual({key: found[key] for key in expected}, expected)
        self.assertEqual(0, self.dtrun("--report-file", file, "--", "true").returncode)
        found = json.loads(file.read_text())
        self.assertEqual((found["status"], found["failed"], found["culprit"], found["checkpoint"]), (0, False, None, None))
        self.assertIn("report.json", self.refused(2, "--report-file", "missing/report.json", "--", "true"))
        (self.folder / "program").write_text("#!/no/interpreter\n")
        (self.folder / "program").chmod(0o755)
        self.assertIn("/program", self.refused(12, "--report-file", file, "--", self.folder / "program"))
        found = json.loads(file.read_text())
        self.assertEqual((found["status"], found["failed"], found["attempts"]), (12, True, 1))

    def test_checkpoint_and_advice_of_the_report_are_of_one_run(self):
        """A rank that runs a script trains several runs in turn."""
        file = self.folder / "report.json"
        first, begun = "run first\ncommitted 100 resume first\n", "progress 3\n"
        second = begun + "run second\ncommitted 5"
        for last, expected in (("", (100, "resume first")), (begun, (None, "")), (second + " resume second\n", (5, "resume second")),
                               (second + "\n", (5, ""))):
            for restarts in (0, 1):
                with self.subTest(last, restarts=restarts):
                    text = f"printf '{first}' >&$DTRUN_CONTROL_FD; " \
                        f"[ $TORCHELASTIC_RESTART_COUNT = {restarts} ] && printf '{last}' >&$DTRUN_CONTROL_FD; exit 7"
                    process = self.dtrun("-n", "1", "--max-restarts", str(restarts), "--restart-backoff", "0.02", "--report-file", file,
                                         "--", "bash", "-c", text)
                    found = json.loads(file.read_text())
                    # If the last attempt has none, the previous attempt counts.
                    step, advice = (100, "resume first") if restarts and expected[0] is None else expected
                    self.assertEqual((found["checkpoint"], found["resume"]), (step, advice), process.err)
                    self.assertEqual([line for line in process.err.splitlines() if "resume " in line],
                                     [f"dtrun: {advice}"] if advice else [], process.err)

    def test_the_report_file_replaces_nothing_but_reports(self):
        data, link = self.folder / "data.txt", self.folder / "link"
        data.write_text("some text")
        link.symlink_to("nowhere")
        for path in (data, link):
            self.assertIn(f"--report-file {path}", self.refused(2, "--report-file", path, "--", "true"))
        self.assertEqual(("some text", True), (data.read_text(), link.is_symlink()))
        data.write_text("")
        self.assertEqual(0, self.dtrun("--report-file", data, "--", "true").returncode)
        self.assertEqual(0, json.loads(data.read_text())["status"])

    def test_a_report_file_that_cannot_be_read_is_not_replaced(self):
        file = self.folder / "data.txt"
        file.write_text("some text")
        for call, error, status in (("openat", "EACCES", 2), ("pread64", "EACCES", 2), ("openat", "EMFILE", 6)):
            with self.subTest(call, error=error):
                failing = ("strace", "-f", "-qq", "-o", "/dev/null", "-P", str(file), "-e", f"trace={call}", "-e", f"inject={call}:error={error}")
                process = self.dtrun("--report-file", file, "--", "true", under=failing)
                self.assertEqual((process.returncode, file.read_text()), (status, "some text"), process.err)
                self.assertIn(f"--report-file '{file}'", process.err)

    def test_no_report_file_of_an_earlier_job_stays(self):
        file = self.folder / "report.json"
        self.assertEqual(0, self.dtrun("--report-file", file, "--", "true").returncode)
        (self.folder / "file").touch()
        self.refused(2, "--report-file", file, "--log-dir", self.folder / "file", "--", "true")
        self.assertFalse(file.exists())
        self.assertEqual(0, self.dtrun("--report-file", file, "--", "true").returncode)
        process = self.start("--report-file", file, "--", "sh", "-c", ": > here; sleep 60")
        self.wait_for_files("here")
        for pid in children_of(process.pid):  # the supervisor
            os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=LIMIT)
        self.assertEqual((137, False), (process.returncode, file.exists()))


READ = """
import sys
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
print(ChildFailedError("dtrain", {0: ProcessFailure(local_rank=0, pid=1, exitcode=2, error_file=sys.argv[1])}).format_msg())
"""


class ErrorFileTest(FolderTest):
    def test_the_error_file_of_ranks_under_dtrun(self):
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

    def test_a_success_leaves_no_error_file(self):
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
MODEL = ("--layers", "1", "--width", "8", "--heads", "1", "--neurons", "16", "--seq-len", "8", "--steps", "2")


class OneErrorTest(DtrunTest):
    limit = 60

    def setUp(self):
        super().setUp()
        (self.folder / "text").write_bytes(bytes(range(32, 127)) * 100)

    def refused(self, status, *arguments, ranks=4):
        """The single error line of dtrain, without other output."""
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

    def test_the_error_follows_what_other_ranks_still_write(self):
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
