"""Kills a save at each of its system calls, and fails each of them: the old or the new checkpoint is always intact.

The small saver is LibTorch-free, so that strace can attach to it once it is about to save: the calls that strace counts
are those of the save.
"""

import collections
import concurrent.futures
import errno
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

from dtrain_harness import make_folder, mount_tmpfs
from messages import assert_names, holds

SAVER = pathlib.Path(os.environ["DTRAIN_BINARY_DIR"]) / "bin" / "small_saver"
CALLS = ("openat", "open", "mkdir", "write", "fsync", "close", "rename", "unlink", "rmdir")
LIMIT = 60  # seconds after which a process has hung
CHECKPOINT_ERROR = 6

Call = collections.namedtuple("Call", "name number line")  # number: among the thread's calls of that name


class Failed(AssertionError):
    pass


class NotAttached(Exception):
    pass


def expect(condition, *what):
    if not condition:
        raise Failed(" ".join(map(str, what)))


class Save:
    """One save of a run that has step-1, as step-2 on two ranks, under strace."""

    def __init__(self, run, mode, *injections):
        self.log = run.parent / (run.name + ".strace")
        saver = subprocess.Popen([SAVER, "save", run, "2", "2", mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True)
        strace = None
        try:
            expect(saver.stdout.readline() == "ready\n", "the saver did not begin:", saver.stderr)
            traced = ",".join(CALLS + ("access",))
            strace = subprocess.Popen(["strace", "-f", "-y", "-o", self.log, "-e", "trace=" + traced, *injections,
                                       "-p", str(saver.pid)], stderr=subprocess.PIPE, text=True)
            attached = strace.stderr.readline()
            if "attached" not in attached:
                raise NotAttached(attached.strip())
            _, self.err = saver.communicate("x", timeout=LIMIT)
            strace.communicate(timeout=LIMIT)
        finally:
            for process in (saver, strace):
                if process is not None:
                    process.kill()
                    process.communicate()
        self.status = saver.returncode

    def calls(self):
        """The calls between the markers, in their order."""
        found, numbers, is_within = [], collections.Counter(), False
        for line in self.log.read_text().splitlines():
            match = re.match(r"(\d+) +(\w+)\(", line)
            if not match:
                continue
            pid, name = match.groups()
            if name == "access":
                is_within = "small-saver-begins" in line
                continue
            numbers[pid, name] += 1
            if is_within:
                found.append(Call(name, numbers[pid, name], line))
        return found


def check(run):
    """The steps of the whole checkpoints, newest first; afterwards nothing else may be left."""
    result = subprocess.run([SAVER, "--check", run], capture_output=True, text=True, timeout=LIMIT, check=False)
    expect(result.returncode == 0, "the check ended with", result.returncode, result.stdout, result.stderr)
    lines = [line.split(" ", 1) for line in result.stdout.splitlines()]
    steps = [line[1] for line in lines if line[0] == "step"]
    expect(all(step.endswith(" whole") for step in steps), steps)
    steps = [int(step.split()[0]) for step in steps]
    left = {line[1] for line in lines if line[0] == "left"}
    expect(left == {f"step-{step}" for step in steps}, "left are", left, "of", steps)
    return steps


def save_again(run):
    """The next start, which saves a later step."""
    result = subprocess.run([SAVER, "save", run, "3", "2", "serial"], input="x", capture_output=True, text=True,
                            timeout=LIMIT, check=False)
    expect(result.returncode == 0, "the next save:", result.stderr)
    expect(check(run) == [3], "the next save left", os.listdir(run / "checkpoints"))


class SaverTest(unittest.TestCase):
    def setUp(self):
        self.folder = make_folder(self)
        self.template = self.folder / "template"
        self.template.mkdir()
        subprocess.run([SAVER, "save", self.template, "1", "2", "serial"], input="x", check=True, timeout=LIMIT,
                       text=True, stdout=subprocess.DEVNULL)
        self.assertEqual(check(self.template), [1])

    def save(self, name, mode, *injections):
        run = self.folder / name
        shutil.copytree(self.template, run)
        return run, Save(run, mode, *injections)

    def calls(self, mode):
        run, save = self.save("calls-" + mode, mode)
        self.assertEqual((save.status, save.err), (0, ""))
        self.assertEqual(check(run), [2])
        calls = save.calls()
        self.assertGreater(len(calls), 50)
        return calls

    def for_each(self, work, items):
        """work(item) for all, a few at a time; names those that failed."""
        with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            tasks = [(item, pool.submit(work, item)) for item in items]
        failures = [f"{item}: {task.exception()}" for item, task in tasks if task.exception()]
        self.assertEqual(failures, [])


class Kill(SaverTest):
    def kill(self, mode, name, number):
        injection = f"inject={name}:signal=SIGKILL:when={number}"
        run, save = self.save(f"{mode}-{name}-{number}", mode, "-e", injection)
        expect(save.status == -signal.SIGKILL, "ended with", save.status, "instead of being killed")
        return run, check(run)

    def test_killed_at_each_system_call(self):
        calls = self.calls("serial")
        committed = [call.name for call in calls].index("rename")

        def kill(index):
            call = calls[index]
            run, steps = self.kill("serial", call.name, call.number)
            save_again(run)
            # strace kills before the call takes place.
            expected = [1] if index <= committed else [2, 1] if index <= pruned else [2]
            expect(steps == expected, call.line, "left", steps, "instead of", expected)

        pruned = [index for index, call in enumerate(calls) if call.name == "rename"][1]
        self.for_each(kill, range(len(calls)))
        print(f"killed at each of {len(calls)} system calls: "
              f"{dict(collections.Counter(call.name for call in calls))}")

    def test_killed_at_each_system_call_of_each_thread(self):
        calls = self.calls("threads")
        points = sorted({(call.name, call.number) for call in calls})

        def kill(point):
            _, steps = self.kill("threads", *point)
            expect(steps in ([1], [2, 1], [2]), "left", steps)

        self.for_each(kill, points)
        print(f"killed at the n-th call of whichever thread comes first: {len(points)} points")


class Error(SaverTest):
    def test_each_system_call_fails(self):
        calls = self.calls("serial")
        committed = [call.name for call in calls].index("rename")

        def fail(index):
            call = calls[index]
            injection = f"inject={call.name}:error=EIO:when={call.number}"
            run, save = self.save(f"error-{index}", "serial", "-e", injection)
            expect("INJECTED" in save.log.read_text(), "nothing was injected")
            # No sync of a folder is repeated; all else is, or its file is written anew.
            around = " ".join(each.line for each in calls[max(index - 2, 0):index])
            is_sync = "O_DIRECTORY" in around and (call.name == "fsync" or (call.name == "close" and "fsync(" in around))
            steps = check(run)
            if is_sync:
                expect(save.status == CHECKPOINT_ERROR, call.line, "ended with", save.status, save.err)
                expect(save.err.count("\n") == 1 and str(run / "checkpoints") in save.err, call.line, save.err)
                expect(os.strerror(errno.EIO) in save.err, call.line, save.err)
                expect(steps[0] == (1 if index <= committed else 2), call.line, "left", steps)
            else:
                expect(save.status == 0, call.line, "ended with", save.status, save.err)
                is_told = save.err.count("\n") == 1 and holds(save.err, "30 s")
                # A folder that was only listed was closed: nothing can be lost.
                expect(is_told or (call.name == "close" and not save.err), call.line, save.err)
                expect(steps == [2], call.line, "left", steps)
            save_again(run)

        self.for_each(fail, range(len(calls)))
        print(f"each of {len(calls)} system calls failed with EIO")

    def test_a_disk_that_is_full(self):
        disk = self.folder / "disk"
        mount_tmpfs(self, disk, "size=1m")
        run = disk / "run"
        shutil.copytree(self.template, run)
        moments = [self.fill(disk, run, limit) for limit in ("nr_blocks", "nr_inodes")]
        self.assertGreater(min(moments), 6)
        print(f"the disk was full at {moments[0]} moments, and {moments[1]} times without room for names")
        # Nobody makes room.
        self.set_room(disk, "nr_blocks", self.used(disk, "nr_blocks") + 1)
        result = subprocess.run([SAVER, "save", run, "2", "2", "serial"], input="x", capture_output=True, text=True,
                                timeout=2 * LIMIT, check=False)
        self.assertEqual(result.returncode, CHECKPOINT_ERROR, result.stderr)
        last = result.stderr.splitlines()[-1]
        assert_names(last, os.strerror(errno.ENOSPC), run / "checkpoints")
        self.assertEqual(check(run), [1])

    def set_room(self, disk, limit, number):
        subprocess.run(["mount", "-o", f"remount,{limit}={number}", disk], check=True)

    def used(self, disk, limit):
        status = os.statvfs(disk)
        return status.f_blocks - status.f_bfree if limit == "nr_blocks" else status.f_files - status.f_ffree

    def fill(self, disk, run, limit):
        """Saves with more and more room, until it suffices from the start: how often more had to be made meanwhile."""
        used = self.used(disk, limit)
        for number in range(100):
            self.set_room(disk, limit, used + number)
            with subprocess.Popen([SAVER, "save", run, "2", "2", "serial"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, text=True) as saver:
                saver.stdin.write("x")
                saver.stdin.close()
                told = saver.stderr.readline()
                self.set_room(disk, limit, 1000)
                rest = saver.stderr.read()
            self.assertEqual(saver.returncode, 0, told + rest)
            self.assertEqual(check(run), [2])
            shutil.rmtree(run)
            shutil.copytree(self.template, run)
            if not told:
                return number
            assert_names(told, os.strerror(errno.ENOSPC), "30 s")
        self.fail("there is never enough room")


def reason_to_skip():
    with tempfile.TemporaryDirectory(prefix="dtrain-kill-") as folder:
        try:
            Save(pathlib.Path(folder), "serial")
        except NotAttached as error:
            return f"needs ptrace: {error}"
        finally:
            pathlib.Path(folder + ".strace").unlink(missing_ok=True)
    return None


if __name__ == "__main__":
    if reason := reason_to_skip():
        print("skipped: " + reason)
        sys.exit(77)
    unittest.main()
