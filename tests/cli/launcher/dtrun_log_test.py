"""dtrun's folders of logs: a disk that hangs holds up neither the supervision of the ranks nor the end of dtrun; their
limits; and who may read and plant what there."""

import errno
import os
import pathlib
import re
import shutil
import signal
import stat
import time

from dtrun_harness import DtrunTest, children_of, main, state_of, variable_of, wait_until
from messages import assert_names, lines_naming

USAGE, CHECKPOINT = 2, 6
SOON = 30  # seconds
FOR_GOOD = 60
TEXT = "".join(f"{number}\n" for number in range(1, 5001))
WAIT_FOR_GO = "until [ -e go ]; do sleep 0.01; done; "


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


class BadDiskTest(DtrunTest):
    """strace has the writes to rank 0's log wait or fail, as a bad disk would."""

    def start_traced(self, text, injection, *options):
        """dtrun with two ranks, which go once strace watches what is done with rank 0's log."""
        process = self.start(*self.shell(WAIT_FOR_GO + text, "--log-dir", str(self.folder / "logs"), "--redirects", "1", *options))
        self.addCleanup(process.communicate)
        self.addCleanup(self.kill_survivors)
        (self.supervisor,) = wait_until(lambda: children_of(process.pid), "the supervisor")
        wait_until(lambda: len(children_of(self.supervisor)) == 2, "the ranks")
        (self.log,) = (self.folder / "logs").glob("*/attempt_0/0/stdout.log")
        self.attach(self.supervisor, "-f", "-e", "trace=write,rename,openat", "-P", self.log, "-e", injection)
        (self.folder / "go").touch()
        return process

    def start_hanging(self, text, *, seconds=FOR_GOOD, when="1+"):
        process = self.start_traced(text, f"inject=write:delay_enter={seconds * 1_000_000}:when={when}")
        wait_until(self.hangs, "a write that hangs")
        return process

    def hangs(self):
        """Returns whether strace still holds a thread of the supervisor."""
        for _ in range(5):
            if "t" not in map(state_of, os.listdir(f"/proc/{self.supervisor}/task")):
                return False
            time.sleep(0.02)
        return True

    def rank(self, number):
        (pid,) = [pid for pid in children_of(self.supervisor) if variable_of(pid, "RANK") == str(number)]
        return pid

    def end_of(self, process):
        _, errors = process.communicate(timeout=SOON)
        self.assert_nothing_left()
        return errors.splitlines()

    def assert_told(self, lines):
        text = r"dtrun: warning: .* in (\S+) .*\b(\d+) bytes"
        (told,) = [match for match in map(lambda line: re.fullmatch(text, line), lines) if match]
        self.assertEqual(str(self.log.parents[1]), str(self.folder / told[1]))
        self.assertGreater(int(told[2]), 0)

    def test_a_failed_rank_is_seen_and_dtrun_does_not_grow(self):
        process = self.start_hanging("[ $RANK = 0 ] && exec yes; sleep 100")
        time.sleep(0.2)  # by now all that may block is blocked
        status = pathlib.Path(f"/proc/{self.supervisor}/status").read_text()
        self.assertLess(int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]), 32 * 1024)
        os.kill(self.rank(1), signal.SIGKILL)
        lines = self.end_of(process)
        self.assertEqual(128 + signal.SIGKILL, process.returncode)
        self.assert_told(lines)
        assert_names(lines[-1], "dtrun: failed", "rank 1", "signal 9")

    def test_ranks_that_are_stopped_can_save(self):
        process = self.start_hanging("trap 'touch saved$RANK; exit 9' TERM; touch ready$RANK; "
                                     "while :; do echo line; sleep 0.01; done")
        self.wait_for_files("ready0", "ready1")
        process.send_signal(signal.SIGTERM)
        lines = self.end_of(process)
        self.assertEqual(9, process.returncode)
        self.assertTrue((self.folder / "saved0").exists() and (self.folder / "saved1").exists())
        self.assert_told(lines)
        assert_names(lines[-1], "dtrun: stopped", "SIGTERM")

    def test_a_disk_that_hangs_for_a_while_delays_a_rank_and_loses_no_line(self):
        process = self.start_hanging("[ $RANK = 1 ] || { seq 400000; touch written; }", seconds=2, when="1")
        self.assertFalse((self.folder / "written").exists())
        lines = self.end_of(process)
        self.assertEqual((0, 1), (process.returncode, len(lines)), lines)
        self.assertEqual([str(n) for n in range(1, 400001)], self.log.read_text().splitlines())

    def test_a_clean_end_waits_for_the_disk_until_a_signal(self):
        process = self.start_hanging("echo line")
        wait_until(lambda: not children_of(self.supervisor), "the end of the ranks")
        time.sleep(0.5)
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGTERM)
        self.assert_told(self.end_of(process))
        self.assertEqual(0, process.returncode)

    def test_a_broken_disk_leaves_a_gap_in_a_log(self):
        process = self.start_traced("for i in 1 2 3; do echo line; sleep 0.05; done", "inject=write:error=EIO:when=2+")
        lines = self.end_of(process)
        self.assertEqual(0, process.returncode)
        self.assertEqual(2, len(lines_naming("\n".join(lines[1:]), "dtrun: warning", "rank 0's stdout")))
        assert_names(lines[1], os.strerror(errno.EIO))
        assert_names(lines[2], "10 bytes")
        self.assertEqual("line\n", self.log.read_text())

    def test_one_error_does_not_end_the_rotation(self):
        for call in ("rename", "openat"):
            with self.subTest(call=call):
                process = self.start_traced("[ $RANK = 1 ] || seq 5000", f"inject={call}:error=EIO:when=1", "--log-size-limit", "4KiB")
                lines = self.end_of(process)
                logs = {path.name: path.read_text() for path in self.log.parent.glob("stdout.log*")}
                shutil.rmtree(self.folder / "logs")
                (self.folder / "go").unlink()
                self.assertEqual((0, 1), (process.returncode, sum("--log-size-limit" in line for line in lines)), lines)
                size = len(TEXT) // 4096 * 4096
                self.assertTrue(logs == {"stdout.log.1": TEXT[size - 4096:size], "stdout.log": TEXT[size:]},
                                {name: len(text) for name, text in logs.items()})


class Limits(DtrunTest):
    def logs_of(self, limit, text="seq 5000"):
        """The texts of rank 0's log files, by name, and what dtrun warned of."""
        process = self.dtrun("-n", "1", "--log-dir", "logs", "--redirects", "1", "--log-size-limit", limit, "--", "sh", "-c", text)
        self.assertEqual(0, process.returncode, process.err)
        (folder,) = self.folder.glob("logs/*/attempt_0/0")
        logs = {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}
        return logs, [line for line in process.err.splitlines() if "warning" in line]

    def test_a_log_rotates_at_its_limit_and_one_old_file_stays(self):
        logs, warnings = self.logs_of("4KiB")
        size = len(TEXT) // 4096 * 4096
        self.assertEqual({"stdout.log.1": TEXT[size - 4096:size], "stdout.log": TEXT[size:]}, logs)
        self.assertEqual([], warnings)

    def test_without_a_limit_or_below_it_there_is_one_file(self):
        for limit in ("0", "1GB"):
            logs, _ = self.logs_of(limit)
            self.assertEqual({"stdout.log": TEXT}, logs)
            shutil.rmtree(self.folder / "logs")

    def test_a_log_that_cannot_be_rotated_keeps_growing(self):
        logs, warnings = self.logs_of("4KiB", 'mkdir -p "${TORCHELASTIC_ERROR_FILE%/*}/stdout.log.1/own"; seq 5000')
        self.assertEqual({"stdout.log": TEXT}, logs)
        self.assertEqual(1, len(warnings), warnings)
        self.assertRegex(warnings[0], "rank 0's stdout .*--log-size-limit.*stdout.log: " + os.strerror(errno.EISDIR))


class SharedFolders(DtrunTest):
    """Access permissions of dtrun's folders."""

    def setUp(self):
        super().setUp()
        self.shared = self.folder / "shared"
        self.shared.mkdir()
        self.shared.chmod(0o1777)

    def run_there(self, *arguments, **options):
        return self.dtrun(*arguments, env={"TMPDIR": str(self.shared)}, **options)

    def test_temporary_folders_and_logs_are_private(self):
        result = self.run_there("-n", "1", "--tee", "3", "--", "sh", "-c", 'stat -c %a "${TORCHELASTIC_ERROR_FILE%/*/*/*}"',
                                preexec_fn=lambda: os.umask(0))
        self.assertEqual(result.out, "700\n")
        folder = pathlib.Path(re.search(rf"{self.shared}/dtrun-[0-9A-Za-z]{{6}}", result.err)[0])
        self.assertEqual([mode(folder), folder.stat().st_uid], [0o700, os.geteuid()])
        self.assertEqual((folder / "attempt_0" / "0" / "stdout.log").read_text(), "700\n")

    def test_named_logs_follow_the_umask(self):
        for umask, folders, files in ((0o077, 0o700, 0o600), (0o027, 0o750, 0o640)):
            logs = self.shared / f"logs-{umask}"
            self.dtrun("-n", "1", "--log-dir", logs, "--", "echo", preexec_fn=lambda mask=umask: os.umask(mask))
            found = {path.is_dir(): mode(path) for path in logs.rglob("*")}
            self.assertEqual(found, {True: folders, False: files})

    def test_a_log_folder_that_is_not_writable_is_named(self):
        file = self.folder / "file"
        file.touch()
        result = self.dtrun("-n", "1", "--log-dir", file, "--", "true", status=USAGE)
        assert_names(result.err, "--log-dir", re.compile(re.escape(f"{file}/")))
        result = self.dtrun("-n", "1", "--tee", "3", "--", "true", env={"TMPDIR": str(file)}, status=USAGE)
        assert_names(result.err, "TMPDIR", os.strerror(errno.ENOTDIR))


class FailingStorage(DtrunTest):
    def dtrun_where_mkdir_fails(self, error, *arguments):
        injection = ("strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=mkdir", "-e", f"inject=mkdir:error={error}")
        return self.dtrun(*arguments, under=injection)

    def test_a_transient_error_loses_neither_the_job_nor_its_logs(self):
        text = "echo $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 1 ]"
        for error in ("EIO", "ESTALE", "EINTR", "EMFILE"):
            logs = self.folder / error
            result = self.dtrun_where_mkdir_fails(f"{error}:when=1", "-n", "1", "--max-restarts", "1", "--restart-backoff", "0.02",
                                                  "--log-dir", logs, "--", "sh", "-c", text)
            self.assertEqual(result.returncode, 0, result.err)
            found = sorted((log.parts[-3], log.read_text()) for log in logs.glob("*/attempt_*/0/stdout.log"))
            self.assertEqual(found, [("attempt_0", "0\n"), ("attempt_1", "1\n")])

    def test_a_permanent_error_has_the_storage_status(self):
        for options in (("--log-dir", self.folder / "logs"), ("--tee", "3")):
            result = self.dtrun_where_mkdir_fails("EMFILE", *options, "--", "true")
            self.assertEqual(result.returncode, CHECKPOINT, result.err)
            self.assertIn("trying again", result.err)


if __name__ == "__main__":
    main()
