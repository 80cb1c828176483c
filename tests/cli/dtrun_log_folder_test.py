"""dtrun's folders among those of others: who may read them, and what strangers planted there is left alone."""

import errno
import os
import pathlib
import re
import stat
import unittest

from dtrun_harness import DtrunTest
from messages import assert_names

USAGE, CHECKPOINT, NOBODY = 2, 6, 65534


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


class SharedFolders(DtrunTest):
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
        folder = pathlib.Path(re.search(rf"{self.shared}/dtrun-[0-9a-f]{{32}}", result.err)[0])
        self.assertEqual([mode(folder), folder.stat().st_uid], [0o700, os.geteuid()])
        self.assertEqual((folder / "attempt_0" / "0" / "stdout.log").read_text(), "700\n")

    def test_named_logs_follow_the_umask(self):
        for umask, folders, files in ((0o077, 0o700, 0o600), (0o027, 0o750, 0o640)):
            logs = self.shared / f"logs-{umask}"
            self.dtrun("-n", "1", "--log-dir", logs, "--", "echo", preexec_fn=lambda mask=umask: os.umask(mask))
            found = {path.is_dir(): mode(path) for path in logs.rglob("*")}
            self.assertEqual(found, {True: folders, False: files})

    def test_what_strangers_planted_is_left_alone(self):
        if os.geteuid() != 0:
            self.skipTest("needs root: to be another user")
        names = [f"dtrun-{digit * 32}" for digit in "abc"]
        strangers = self.shared / names[0]
        victim = self.folder / "victim"
        for folder in (strangers, victim):
            folder.mkdir()
            (folder / "error-0.json").write_text("kept")
        os.chown(strangers, NOBODY, NOBODY)
        (self.shared / names[1]).symlink_to(victim)
        os.mkfifo(self.shared / names[2])
        result = self.run_there("-n", "1", "--", "true")
        self.assertEqual((result.returncode, result.err), (0, ""))
        self.assertEqual(sorted(os.listdir(self.shared)), names)
        for folder in (strangers, victim):
            self.assertEqual((folder / "error-0.json").read_text(), "kept")

    def test_a_log_folder_where_nothing_can_be_made_is_named(self):
        file = self.folder / "file"
        file.touch()
        result = self.dtrun("-n", "1", "--log-dir", file, "--", "true")
        self.assertEqual(result.returncode, USAGE)
        assert_names(result.err, "--log-dir", re.compile(re.escape(f"{file}/")))
        result = self.dtrun("-n", "1", "--", "true", env={"TMPDIR": str(file)})
        self.assertEqual(result.returncode, USAGE)
        assert_names(result.err, "TMPDIR", os.strerror(errno.ENOTDIR))


class FailingStorage(DtrunTest):
    def dtrun_where_mkdir_fails(self, error, *arguments):
        injection = ("strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=mkdir", "-e", f"inject=mkdir:error={error}")
        return self.dtrun(*arguments, under=injection)

    def test_a_passing_error_costs_neither_the_job_nor_its_logs(self):
        text = "echo $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 1 ]"
        for error in ("EIO", "ESTALE", "EINTR", "EMFILE"):
            logs = self.folder / error
            result = self.dtrun_where_mkdir_fails(f"{error}:when=1", "-n", "1", "--max-restarts", "1", "--restart-backoff", "0.02",
                                                  "--log-dir", logs, "--", "sh", "-c", text)
            self.assertEqual(result.returncode, 0, result.err)
            found = sorted((log.parts[-3], log.read_text()) for log in logs.glob("*/attempt_*/0/stdout.log"))
            self.assertEqual(found, [("attempt_0", "0\n"), ("attempt_1", "1\n")])
        self.assertEqual(self.dtrun_where_mkdir_fails("EIO:when=1", "--", "true").returncode, 0)

    def test_a_temporary_folder_that_cannot_be_listed_is_not_swept(self):
        folder = self.folder / "full"
        folder.mkdir()
        (folder / "file").touch()
        listing = ("strace", "-f", "-qq", "-o", "/dev/null", "-P", folder, "-e", "trace=getdents64", "-e",
                   "inject=getdents64:error=EIO:when=2+")
        result = self.dtrun("--", "true", under=listing, env={"TMPDIR": str(folder)})
        self.assertEqual((result.returncode, result.err), (0, ""))

    def test_one_that_stays_has_the_status_of_the_storage(self):
        for options in (("--log-dir", self.folder / "logs"), ()):
            result = self.dtrun_where_mkdir_fails("EMFILE", *options, "--", "true")
            self.assertEqual(result.returncode, CHECKPOINT, result.err)
            self.assertIn("trying again", result.err)


if __name__ == "__main__":
    unittest.main()
