"""Limits of the system that a job meets: each is named, quickly, and nobody waits for a rank that met one."""

import errno
import os
import subprocess
import unittest

from messages import assert_names
from train_test import DTRAIN, DTRUN, LIMIT, TrainTest


def quoted(command):
    return " ".join(f"'{word}'" for word in command)


class Limits(TrainTest):
    def ddp_command(self, *flags):
        return [DTRAIN, "--strategy", "ddp", *self.arguments("--overwrite", *flags, steps=1)]

    def error_of(self, command, status):
        """The first error of a command, each of which is one line."""
        result = self.run_command(command, status)
        errors = [line for line in result.stderr.splitlines() if "error: " in line and not line.startswith("dtrun: failed")]
        self.assertTrue(errors, result.stderr)
        self.assertNotIn("unexpected", result.stderr)
        return errors

    def limited(self, limit, command):
        return ["sh", "-c", f"ulimit -Sn {limit}; ulimit -Hn {limit}; exec {quoted(command)}"]


class Descriptors(Limits):
    def test_dtrun_names_the_limit(self):
        error, = self.error_of(self.limited(10, [DTRUN, "-n", "2", "--", *self.ddp_command()]), 12)
        assert_names(error, os.strerror(errno.EMFILE), "10 files", "ulimit -n")

    # At each of these numbers something else is the first that cannot be opened, or nothing any more.
    def test_a_rank_names_the_limit_or_trains(self):
        for backend, limits in (("shm", (8, 10)), ("gloo", (10, 16))):
            for limit in limits:
                ranks = self.limited(limit, self.ddp_command("--backend", backend))
                result = subprocess.run([DTRUN, "-n", "2", "--", *ranks], capture_output=True, text=True, timeout=LIMIT,
                                        check=False)
                with self.subTest(backend=backend, limit=limit, error=result.stderr):
                    self.assertIn(result.returncode, (0, 4) if limit > 10 else (4,))
                    self.assertNotIn("unexpected", result.stderr)
                    if result.returncode != 0:
                        self.assertIn(f"may open {limit} files", result.stderr)

    def test_a_low_soft_limit_is_raised(self):
        command = [DTRUN, "-n", "2", "--", "sh", "-c", f"ulimit -n; exec {quoted(self.ddp_command())}"]
        result = self.run_command(["sh", "-c", f"ulimit -Sn 11; exec {quoted(command)}"])
        self.assertEqual(result.stdout.count("11\n"), 2, "other programs get the limit that dtrun found")


class Threads(Limits):
    def refusing(self, number, command):
        """The command, whose main thread cannot start its thread of that number; the first few only try whether they could."""
        return ["strace", "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "-e", "trace=clone,clone3",
                "-e", f"inject=clone,clone3:error=EAGAIN:when={number}", *command]

    def check(self, errors):
        self.assertTrue(any("thread" in error and "ulimit -u" in error for error in errors), errors)

    def test_ranks_that_are_threads_do_not_wait_for_one_that_cannot_start(self):
        command = [DTRAIN, "--strategy", "dp", "--local-ranks", "2", *self.arguments()]
        self.check(self.error_of(self.refusing(10, command), 8))

    def test_a_rank_whose_group_gets_no_thread_tells_the_others(self):
        refusing = quoted(self.refusing(7, self.ddp_command()))
        script = f"[ $RANK = 0 ] || exec {refusing}; exec {quoted(self.ddp_command())}"
        result = self.run_command([DTRUN, "-n", "2", "--", "sh", "-c", script], 8)
        self.assertIn("ulimit -u", result.stderr)


if __name__ == "__main__":
    unittest.main()
