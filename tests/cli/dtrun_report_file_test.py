"""--report-file: how a job ended, as JSON; nothing but reports is replaced."""

import json
import os
import signal
import socket

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
        """A rank that is a script trains one run after the other."""
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
                    # Where the last attempt has none, that of the attempt before counts.
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


if __name__ == "__main__":
    main()
