"""--bind: where ranks run is where dtrun says, and threads follow."""

import os
import re
import unittest

from dtrun_harness import DtrunTest
from messages import assert_names

USAGE = 2
SHOW = 'echo $(sed -n "s/Cpus_allowed_list:\\t//p" /proc/self/status) $OMP_NUM_THREADS'


def cpus_of(text):
    return {cpu for part in text.split(",") for cpu in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)}


class Binding(DtrunTest):
    def shown(self, ranks, *options, **more):
        """(CPUs, threads) by rank, and dtrun's own lines."""
        result = self.dtrun("-n", str(ranks), *options, "--", "sh", "-c", SHOW, **more)
        found = {}
        for line in result.out.splitlines():
            rank, cpus, threads = re.match(r"(?:\[(\d+)\] )?(\S+) (\d+)$", line).groups()
            found[int(rank or 0)] = (cpus_of(cpus), int(threads))
        return [found[rank] for rank in sorted(found)], result.err

    def test_nothing_is_bound_unless_asked(self):
        ranks, error = self.shown(2)
        self.assertEqual([cpus for cpus, _ in ranks], [os.sched_getaffinity(0)] * 2)
        self.assertEqual(error, "")

    def test_ranks_have_cores_of_their_own_within_dtruns_mask(self):
        if self.cores() < 2:
            self.skipTest("needs two cores")
        ranks, error = self.shown(2, "--bind", "cores")
        self.assertRegex(error, r"\Adtrun: .*cores.*\n\Z")
        self.assertEqual([cpus_of(text) for text in re.findall(r"\d+ to CPUs ([\d,-]+)", error)], [cpus for cpus, _ in ranks])
        self.assertFalse(ranks[0][0] & ranks[1][0], ranks)
        for cpus, threads in ranks:
            self.assertLessEqual(cpus, os.sched_getaffinity(0))
            self.assertLessEqual(threads, len(cpus))
        self.assertEqual(ranks[0][1], ranks[1][1])

    def cores(self):
        lists = set()
        for cpu in os.sched_getaffinity(0):
            with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", encoding="ascii") as file:
                lists.add(file.read())
        return len(lists)

    def test_a_smaller_mask_of_dtrun_binds_too(self):
        one = min(os.sched_getaffinity(0))
        ranks, error = self.shown(1, "--bind", "cores", preexec_fn=lambda: os.sched_setaffinity(0, {one}))
        self.assertEqual(ranks, [({one}, 1)])
        self.assertRegex(error, rf"\Adtrun: .*cores: 0 to CPUs {one}\n\Z")
        ranks, error = self.shown(1, "--bind=numa", preexec_fn=lambda: os.sched_setaffinity(0, {one}))
        self.assertEqual(ranks, [({one}, 1)])
        self.assertRegex(error, rf"\Adtrun: .*NUMA.*: 0 to CPUs {one}\n\Z")

    def test_emulated_nodes_divide_the_machine(self):
        if self.cores() < 2:
            self.skipTest("needs two cores")
        result = self.dtrun("--emulate-nodes", "2", "-n", "1", "--bind", "cores", "--", "sh", "-c", SHOW)
        shown = [cpus_of(line.split()[1]) for line in result.out.splitlines()]
        self.assertEqual(len(shown), 2, result.out)
        self.assertFalse(shown[0] & shown[1], result.out)

    def test_more_ranks_than_cores_are_refused(self):
        result = self.dtrun("-n", "4000", "--bind", "cores", "--", "true", status=USAGE)
        assert_names(result.err, "dtrun: error", "--bind cores", "4000 ranks")
        result = self.dtrun("-n", "1", "--bind", "sockets", "--", "true")
        assert_names(result.err, "--bind", "'sockets'", "none", "cores", "numa")


if __name__ == "__main__":
    unittest.main()
