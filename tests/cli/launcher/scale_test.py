"""Many ranks on one machine: they meet, share memory and end quickly, with few open files. The ranks are not dtrain but
run its rendezvous, its groups and its control connection (tests/support/ranks/rank_stub.cpp)."""

import os
import resource
import signal
import time

import stub_ranks
from dtrun_harness import DtrunTest, children_of, main
from messages import assert_names

SPAWN = 12


class ManyRanks(DtrunTest):
    def test_64_ranks_meet_and_end(self):
        begin = time.monotonic()
        result = self.dtrun("-n", "64", "--", str(stub_ranks.STUB))
        seconds = time.monotonic() - begin
        self.assertEqual((result.returncode, result.err), (0, ""))
        told = stub_ranks.TOLD.findall(result.out)
        self.assertEqual(sorted(int(rank) for rank, *_ in told), [0, 63])
        self.assertLess(seconds, 20)  # 0.4 s on two idle cores

    def test_the_ranks_of_two_nodes_meet_through_the_launchers(self):
        result = self.dtrun("--emulate-nodes", "2", "-n", "12", "--", str(stub_ranks.STUB))
        self.assertEqual((result.returncode, result.err), (0, ""))

    def test_the_open_files_of_a_rank_do_not_grow_with_their_number(self):
        few, many = stub_ranks.stand(4), stub_ranks.stand(40)
        self.assertEqual(few.open_files[1], many.open_files[1])
        self.assertLessEqual(many.open_files[1], 12)
        self.assertLessEqual(many.launcher_files - few.launcher_files, 4 * 36)
        self.assertLess(many.memory / 40, 6 << 20)

    def test_all_notice_the_end_of_one(self):
        process = self.start("-n", "32", "--", str(stub_ranks.STUB), "60")
        for _ in range(2):
            process.stdout.readline()
        supervisor, = children_of(process.pid)
        victim = max(children_of(supervisor))
        begin = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        process.communicate(timeout=20)
        self.assertEqual(process.returncode, 128 + signal.SIGKILL)
        self.assertLess(time.monotonic() - begin, 10)
        self.assert_nothing_left()

    def test_too_few_files_are_told_before_a_rank_starts(self):
        limit = 200
        result = self.dtrun("-n", "64", "--", "touch", "started",
                            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)), status=SPAWN)
        assert_names(result.err, "64 ranks", "4 files", f"{limit} files", "ulimit -n")
        self.assertFalse((self.folder / "started").exists())


if __name__ == "__main__":
    main()
