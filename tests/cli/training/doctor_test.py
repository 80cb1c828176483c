"""dtrain doctor: its facts are right, problems come with advice, and nothing is left behind."""

import errno
import os
import re
import socket
import unittest

from dtrain_harness import DATA, DTRAIN, DTRUN, USAGE, FolderTest, launched, need_mounts, run
from messages import assert_names

# A rank's clock that is 100 s ahead.
WRONG_CLOCK = r"""
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec* time) {
  int result = syscall(SYS_clock_gettime, clock, time);
  if (clock == CLOCK_REALTIME) time->tv_sec += 100;
  return result;
}
"""


class Doctor(FolderTest):
    def doctor(self, ranks, *flags, status=0, **options):
        return run(*launched(ranks, "doctor", "--threads", "1", *flags), cwd=self.folder, status=status, **options)

    def facts(self, result):
        """Lines by name, in order."""
        found = {}
        for line in result.stdout.splitlines():
            name, value = line[:15].strip(), line[16:]
            found.setdefault(name, []).append(value)
        return found

    def test_two_ranks_are_examined_and_measured(self):
        facts = self.facts(self.doctor(2, "--run-dir", "deep/run"))
        self.assertEqual(list(self.folder.iterdir()), [])
        self.assertEqual(facts["hosts"], [socket.gethostname()])
        version = run(DTRAIN, "--version").stdout.strip()
        self.assertTrue(facts["versions"][0].startswith(version + ", LibTorch 2.11.0"), facts)
        assert_names("\n".join(facts["run folder"]), "deep/run")
        self.assertEqual(facts["ranks"], ["2, by RANK"])
        self.assertRegex(facts["rendezvous"][0], r"sockets, .*\d+\.\d+ s; backend shm$")
        self.assertNotIn("PROBLEM", facts)
        self.assertRegex(facts["clocks"][0], r"^rank 1's clock is [\d.]+ \w+ (ahead of|behind) rank 0's, \+/- ")
        self.assertRegex(facts["configuration"][0], r"^hash [0-9a-f]{16}, ")
        cpus = set(os.sched_getaffinity(0))
        listed = re.search(r"\(CPUs ([\d,-]+)\), 1 thread per rank", facts["cores"][0])[1]
        self.assertEqual({cpu for part in listed.split(",") for cpu in
                          range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)}, cpus)
        self.check_bandwidth(facts["all-reduce"])

    def check_bandwidth(self, lines):
        """The rate follows from bytes and time, on two ranks: all bytes once."""
        units = {"us": 1e-6, "ms": 1e-3, "s": 1, "KiB": 1 << 10, "MiB": 1 << 20}
        self.assertEqual(len(lines), 4)
        for line in lines:
            size, size_unit, time, time_unit, rate = re.match(
                r" *([\d.]+) (\w+): +([\d.]+) (\w+), ([\d.]+) GB/s$", line).groups()
            gigabytes = float(size) * units[size_unit] / 1e9
            # Both figures are rounded to the digits shown.
            half = 0.5 * 10 ** -len(time.partition(".")[2])
            shortest, longest = ((float(time) + sign * half) * units[time_unit] for sign in (-1, 1))
            self.assertGreaterEqual(float(rate) + 0.00501, gigabytes / longest, line)
            if shortest > 0:
                self.assertLessEqual(float(rate) - 0.00501, gigabytes / shortest, line)

    def test_a_single_rank_is_examined(self):
        facts = self.facts(self.doctor(1))
        self.assertEqual(len(facts["all-reduce"]), 1)
        self.assertEqual(facts["ranks"], ["1, no launcher"])
        self.assertTrue(facts["rendezvous"][0].endswith("backend none"), facts)  # as train's start has it
        self.assertIn("--run-dir", facts["run folder"][0])

    def test_data_that_a_rank_cannot_read_end_it(self):
        result = self.doctor(2, "--data", "missing.dtok", status=DATA)
        self.assertIn("missing.dtok", result.stderr)
        self.assertEqual(result.stdout, "")

    def test_ranks_with_other_settings_are_a_problem(self):
        rank = f'exec {DTRAIN} doctor --threads 1 --strategy ddp --seed $RANK'
        result = run(DTRUN, "-n", 2, "--", "sh", "-c", rank, status=USAGE)
        self.assertRegex(result.stdout, r"PROBLEM +ranks 0 and 1 .*train.seed: 0 on rank 0, 1 on rank 1")
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        assert_names(result.stderr, "1 problem", "ranks 0 and 1")
        self.assertIn("all-reduce ", result.stdout)  # it looks further

    def test_a_folder_that_is_not_shared_is_a_problem_on_all_ranks(self):
        need_mounts(self)
        (self.folder / "run").mkdir()
        rank = ('if [ $RANK = 1 ]; then exec unshare -m sh -c \'mount -t tmpfs none run; exec "$@"\' sh "$@"; '
                'else exec "$@"; fi')
        result = run(DTRUN, "-n", 2, "--", "sh", "-c", rank, "sh", DTRAIN, "doctor", "--threads", "1", "--run-dir", "run",
                     cwd=self.folder, status=USAGE)
        self.assertRegex(result.stdout, r"PROBLEM +--run-dir run: rank 1 of 2 ")
        self.assertEqual(list((self.folder / "run").iterdir()), [])

    def test_a_folder_that_cannot_be_written_is_a_problem(self):
        (self.folder / "file").write_text("")
        result = self.doctor(2, "--run-dir", "file", status=USAGE)
        self.assertRegex(result.stdout, r"PROBLEM +rank 0 .*--run-dir: .*file")
        result = self.doctor(1, "--run-dir", "/proc/run", status=USAGE)
        self.assertRegex(result.stdout, r"PROBLEM +rank 0 .*--run-dir: '/proc/run' ")
        self.assertEqual([path.name for path in self.folder.iterdir()], ["file"])

    def test_a_folder_that_another_machine_may_only_read_is_a_problem_of_its_ranks(self):
        need_mounts(self)
        (self.folder / "run").mkdir()
        rank = ('if [ $RANK = 1 ]; then exec unshare -m sh -c \'mount --bind run run && mount -o remount,bind,ro run && cd . && exec "$@"\' '
                'sh "$@"; else exec "$@"; fi')
        result = run(DTRUN, "-n", 2, "--", "sh", "-c", rank, "sh", DTRAIN, "doctor", "--threads", "1", "--run-dir", "run",
                     cwd=self.folder, status=USAGE)
        self.assertRegex(result.stdout, rf"PROBLEM +rank 1 .*--run-dir: .*{os.strerror(errno.EROFS)}")
        self.assertEqual(list((self.folder / "run").iterdir()), [])

    def test_a_clock_that_is_wrong_is_a_problem(self):
        (self.folder / "clock.c").write_text(WRONG_CLOCK)
        run("cc", "-shared", "-fPIC", "-o", self.folder / "clock.so", self.folder / "clock.c")
        rank = f'[ $RANK != 1 ] || export LD_PRELOAD={self.folder}/clock.so; exec {DTRAIN} doctor --threads 1'
        result = run(DTRUN, "-n", 3, "--", "sh", "-c", rank, status=USAGE)
        self.assertRegex(result.stdout, r"PROBLEM +rank 1's clock .*(?:100\.0|99\.9)\d s ahead .* \+/- [\d.]+ \w+: ")

    def test_a_job_that_memory_cannot_hold_is_a_problem(self):
        result = self.doctor(1, "--width", "16384", "--layers", "400", "--tie-layers", "off", status=USAGE)
        self.assertRegex(self.facts(result)["PROBLEM"][0], r"[\d.]+ TiB .*[\d.]+ \wiB ")
        self.assertRegex(self.facts(self.doctor(2))["memory needed"][0], r"^[\d.]+ MiB ")

    def test_the_memory_needed_is_that_predicted_by_the_run(self):
        (self.folder / "book.txt").write_bytes(b"words " * 50_000)
        size = r" ([\d.]+ \w+) predicted"
        for ranks in (1, 2):
            needs = []
            for flags in ((), ("--val-fraction", "0", "--checkpoint-every", "none", "--sample-every", "0")):
                flags = ("--data", "book.txt", "--steps", "1", "--layers", "1", "--width", "64", *flags)
                with self.subTest(ranks=ranks, flags=flags):
                    needed = re.search(r"memory needed  " + size, self.doctor(ranks, *flags).stdout)[1]
                    trained = run(*launched(ranks, "--threads", "1", *flags), cwd=self.folder).stderr
                    self.assertEqual(needed, re.search(r"memory per \w+" + size, trained)[1])
                    needs.append(needed)
            self.assertNotEqual(*needs)

    def test_wrong_flags_are_refused_as_by_train(self):
        self.assertIn("unknown flag", self.doctor(1, "--stpes", "3", status=USAGE).stderr)
        self.assertIn("--tp", self.doctor(2, "--strategy", "3d", "--tp", "4", status=USAGE).stderr)
        self.assertIn("dtrain doctor", run(DTRAIN, "doctor", "--help").stdout)


if __name__ == "__main__":
    unittest.main()
