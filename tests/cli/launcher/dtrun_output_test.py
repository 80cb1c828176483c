"""Each line a rank writes arrives whole, once, in order, and where it was asked to go."""

import errno
import fcntl
import os
import pathlib
import pty
import re
import resource
import select
import signal
import struct
import subprocess
import termios
import time

from dtrain_harness import screen_lines, terminal_output
from dtrun_harness import DTRUN, DtrunTest, LIMIT, children_of, main, wait_until
from messages import assert_names

CHATTY = """
import os, sys
rank = os.environ["RANK"]
for number in range(20000):
    stream = sys.stdout if number % 2 else sys.stderr
    os.write(stream.fileno(), b"r%s n%d %s\\n" % (rank.encode(), number, b"x" * (number % 200)))
"""


class LinesTest(DtrunTest):
    def python(self, text, *options, ranks=2, **more):
        (self.folder / "program.py").write_text(text)
        return self.dtrun("-n", str(ranks), *options, "--", "python3", "program.py", **more)

    def test_lines_of_busy_writers_stay_whole_and_in_order(self):
        process = self.python(CHATTY, status=0)
        for text, odd in ((process.out, 1), (process.err, 0)):
            expected = {rank: [f"[{rank}] r{rank} n{n} " + "x" * (n % 200)
                               for n in range(odd, 20000, 2)] for rank in "01"}
            lines = text.split("\n")
            self.assertEqual("", lines.pop())
            for rank in "01":
                self.assertEqual(expected[rank], [x for x in lines if x.startswith(f"[{rank}]")])
            self.assertEqual(20000, len(lines))

    def test_a_line_written_in_pieces_is_one_line(self):
        process = self.dtrun(*self.shell("for i in 1 2 3 4 5; do printf $RANK$i; sleep 0.02; done; "
                                         "echo"))
        self.assertEqual(["[0] 0102030405", "[1] 1112131415"], sorted(process.out.splitlines()))

    def test_a_last_line_without_end_is_printed(self):
        process = self.dtrun(*self.shell("printf whole; printf broken >&2; exit 3", ranks=1))
        self.assertEqual("whole\n", process.out)
        self.assertEqual("broken", process.err.splitlines()[0])

    def test_a_rank_may_ask_for_output_without_its_prefix(self):
        text = """
import os
if os.environ["RANK"] == "0":
    os.write(1, b"before\\n")
    os.write(int(os.environ["DTRUN_CONTROL_FD"]), b"plain-output\\n")
    os.write(1, b"one result\\nof two lines\\n")
    os.write(2, b"errors keep it\\n")
else:
    os.write(1, b"of another rank\\n")
"""
        process = self.python(text)
        self.assertEqual(["[1] of another rank", "of two lines", "one result"],
                         sorted(line for line in process.out.splitlines() if "before" not in line))
        self.assertEqual("[0] errors keep it\n", process.err)

    def test_bytes_that_are_not_text_pass_unchanged(self):
        (self.folder / "bytes").write_bytes(bytes(range(256)) + b"\n")
        with open(self.folder / "got", "wb") as got:
            self.dtrun("-n", "1", "--", "cat", "bytes", stdout=got)
        self.assertEqual((self.folder / "bytes").read_bytes(), (self.folder / "got").read_bytes())

    def test_a_line_longer_than_the_limit_loses_nothing(self):
        process = self.python("print('y' * 3000000)", ranks=1)
        self.assertEqual(3000000, process.out.count("y"))

    def test_the_filter_shows_only_the_ranks_it_names(self):
        for options in (("--local-ranks-filter", "0,2"), ("--local-ranks-filter", "0", "--local-ranks-filter", "2")):
            process = self.dtrun(*self.shell("echo out; echo err >&2", *options, ranks=3))
            self.assertEqual(["[0] out", "[2] out"], sorted(process.out.splitlines()))
            self.assertEqual(["[0] err", "[2] err"], sorted(process.err.splitlines()))


class ReaderTest(DtrunTest):
    def test_a_closed_standard_output_neither_ends_nor_hangs_the_job(self):
        read_end, write_end = os.pipe()
        os.close(read_end)
        process = self.dtrun(*self.shell("for i in $(seq 20000); do echo line $i; done; "
                                         "touch finished$RANK; exit 0"), stdout=write_end)
        os.close(write_end)
        self.assertEqual(0, process.returncode, process.err)
        self.assertTrue((self.folder / "finished0").exists())
        self.assertTrue((self.folder / "finished1").exists())

    def test_standard_streams_that_were_never_open_cause_no_error(self):
        text = " ".join([DTRUN, "-n 2 -- sh -c 'echo a; echo b >&2; touch ran$RANK'",
                         "<&- >&- 2>&-"])
        process = subprocess.run(["sh", "-c", text], env=self.environment(), cwd=self.folder,
                                 timeout=LIMIT)
        self.assertEqual(0, process.returncode)
        self.assertTrue((self.folder / "ran1").exists())

    def test_a_reader_that_pauses_neither_hides_a_failure_nor_makes_dtrun_grow(self):
        process = self.start(*self.shell("[ $RANK = 0 ] && exec yes; "
                                         "until [ -e go ]; do sleep 0.01; done; exit 3"))
        time.sleep(0.5)  # all buffers between rank 0 and this test are full by now
        (supervisor,) = children_of(process.pid)
        status = pathlib.Path(f"/proc/{supervisor}/status").read_text()
        self.assertLess(int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]), 32 * 1024)
        (self.folder / "go").touch()
        self.assertEqual(3, process.wait(LIMIT))
        process.stdout.close()
        process.stderr.close()
        self.assert_nothing_left()

    def test_a_slow_reader_gets_every_line(self):
        process = self.start(*self.shell("seq 300000", ranks=1))
        time.sleep(0.3)
        out, _ = process.communicate(timeout=LIMIT)
        self.assertEqual([str(n) for n in range(1, 300001)], out.splitlines())


class FullDiskTest(DtrunTest):
    """A limit on file sizes simulates a full disk: writes beyond it fail until it is raised."""

    LINES = 40_000
    TEXT = (f"for i in $(seq {LINES}); do echo line $i words, words, words that fill a disk and wait; done; "
            "touch written; until [ -e go ]; do sleep 0.02; done; echo the last")

    def start_limited(self, text, *options, limit=4096, stdout=subprocess.PIPE,
                      stderr=subprocess.PIPE):
        program = subprocess.Popen(
            [DTRUN, *self.shell(text, *options, ranks=1)], env=self.environment(), cwd=self.folder, text=True,
            stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY)))
        for pipe in filter(None, (program.stdout, program.stderr)):
            self.addCleanup(pipe.close)
        return program

    def make_room(self, program):
        for pid in (program.pid, *children_of(program.pid)):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def end(self, program):
        (self.folder / "go").touch()
        _, errors = program.communicate(timeout=LIMIT)
        self.assertEqual(0, program.returncode, errors)
        self.assert_nothing_left()
        return errors

    def wait_until_full(self, path, limit=4096):
        wait_until(lambda: path.exists() and path.stat().st_size == limit, "the file to be full")
        time.sleep(0.2)  # the next write has failed

    def test_a_disk_that_is_full_for_a_while_loses_no_line(self):
        path = self.folder / "output"
        with open(path, "ab") as output:
            program = self.start_limited(self.TEXT.replace(str(self.LINES), "200"), stdout=output)
        self.wait_until_full(path)
        self.make_room(program)
        self.assertEqual("", self.end(program))
        lines = path.read_text().splitlines()
        self.assertEqual((201, "the last"), (len(lines), lines[-1]))

    def test_a_disk_that_stays_full_does_not_stop_the_job_and_what_was_dropped_is_counted(self):
        path = self.folder / "output"
        with open(path, "ab") as output:
            program = self.start_limited(self.TEXT, stdout=output)
        self.wait_for_files("written")
        self.make_room(program)
        wait_until(lambda: path.stat().st_size > 2**20, "the lines that wait to be written")
        errors = self.end(program)
        lines = path.read_text().splitlines()
        self.assertEqual("the last", lines[-1])
        first, last = errors.splitlines()
        assert_names(first, "dtrun: warning", "standard output", os.strerror(errno.EFBIG))
        dropped = re.fullmatch(r"dtrun: warning: (\d+) lines of standard output were dropped: File too large", last)
        self.assertEqual(self.LINES + 1, len(lines) + int(dropped[1]), last)
        numbers = [int(line.split()[1]) for line in lines[:-1]]
        self.assertEqual(numbers, sorted(set(numbers)))

    def test_lines_that_a_full_disk_never_took_are_counted_at_the_end(self):
        for text, status in (("echo one; echo two; echo three", 0), ("echo one; echo two; echo three; exit 3", 3)):
            with open("/dev/full", "wb") as full:
                process = self.dtrun(*self.shell(text, ranks=1), stdout=full)
            self.assertEqual(status, process.returncode)
            assert_names(process.err, "dtrun: warning", "3 lines", os.strerror(errno.ENOSPC))

    def test_output_to_a_full_disk_hangs_nothing(self):
        with open("/dev/full", "wb") as full:
            self.assertEqual(0, self.dtrun(*self.shell(f"seq {self.LINES}; seq 9 >&2"), stdout=full,
                                           stderr=subprocess.STDOUT).returncode)

    def test_a_log_continues_when_the_disk_has_room_again(self):
        program = self.start_limited(self.TEXT.replace(str(self.LINES), "200"), "--log-dir", "logs", "--redirects", "3")
        self.wait_for_files("written")
        log = next((self.folder / "logs").rglob("stdout.log"))
        self.wait_until_full(log)
        self.make_room(program)
        errors = self.end(program)
        self.assertTrue(log.read_text().endswith("the last\n"))
        whole = sum(len(f"line {i} words, words, words that fill a disk and wait\n") for i in range(1, 201))
        assert_names(errors, "rank 0's stdout", os.strerror(errno.EFBIG))
        missing = whole + len("the last\n") - log.stat().st_size
        assert_names(errors, "rank 0's stdout", f"{missing} bytes")


class UnreadTerminalTest(DtrunTest):
    """A terminal without a reader: a write to it may block although poll says that it would not."""

    FLOOD = "while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx >&2; done"

    def start_unread(self, text, *options):
        self.master, slave = pty.openpty()
        self.addCleanup(os.close, self.master)
        process = self.start(*self.shell(text, *options), stdout=slave, stderr=slave)
        self.wait_until_full(slave)
        os.close(slave)
        return process

    def wait_until_full(self, terminal):
        def is_full():
            return not select.select([], [terminal], [], 0)[1]
        wait_until(is_full, "the terminal to be full")

    def test_a_failed_rank_is_seen(self):
        process = self.start_unread(f"[ $RANK = 0 ] && {{ {self.FLOOD}; }}; "
                                    "until [ -e go ]; do sleep 0.01; done; exit 3")
        (self.folder / "go").touch()
        self.assertEqual(3, process.wait(LIMIT))
        self.assert_nothing_left()

    def test_ranks_that_are_stopped_can_save(self):
        process = self.start_unread(f"trap 'touch saved$RANK; exit 9' TERM; touch ready$RANK; {self.FLOOD}")
        self.wait_for_files("ready0", "ready1")  # one rank alone may fill the terminal
        process.send_signal(signal.SIGTERM)
        self.assertEqual(9, process.wait(LIMIT))
        self.assertTrue((self.folder / "saved0").exists() and (self.folder / "saved1").exists())
        self.assert_nothing_left()

    def test_nothing_outlives_a_killed_dtrun(self):
        process = self.start_unread(self.FLOOD)
        process.kill()
        process.wait(LIMIT)
        self.assert_nothing_left(limit=3)


class FilesTest(DtrunTest):
    TEXT = "echo out $RANK; echo err $RANK >&2; printf end"

    def run_with(self, *options, ranks=2):
        process = self.dtrun(*self.shell(self.TEXT, "--log-dir", "logs", *options, ranks=ranks), status=0)
        (run,) = (self.folder / "logs").iterdir()
        files = {str(path.relative_to(run / "attempt_0")): path.read_text()
                 for path in run.rglob("*.log")}
        for path in sorted(run.rglob("*.log")):
            path.unlink()
        for path in sorted(run.rglob("*"), reverse=True):
            path.rmdir()
        run.rmdir()
        shown = {name for name in ("[0] out 0", "[1] out 1", "[0] err 0", "[1] err 1")
                 if name in (process.out + process.err).splitlines()}
        return files, shown

    def files(self, *names):
        texts = {"stdout": "out {}\nend", "stderr": "err {}\n"}
        return {name + ".log": texts[name[2:]].format(name[0]) for name in names}

    def test_streams_go_to_files_to_the_screen_or_to_both(self):
        every = ("0/stdout", "0/stderr", "1/stdout", "1/stderr")
        for options, files, shown in (((), every, {"[0] out 0", "[1] out 1", "[0] err 0", "[1] err 1"}),
                                      (("--redirects", "2"), ("0/stderr", "1/stderr"), {"[0] out 0", "[1] out 1"}),
                                      (("--redirects", "0:3,1:1"), ("0/stdout", "0/stderr", "1/stdout"), {"[1] err 1"}),
                                      (("--redirects=3", "--tee=1:2"), every, {"[1] err 1"})):
            with self.subTest(options):
                self.assertEqual((self.files(*files), shown), self.run_with(*options))

    def test_containers_may_share_a_log_folder(self):
        contained = ["unshare", "--pid", "--fork", "--mount-proc"]
        if subprocess.run([*contained, "true"], stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("needs namespaces: of process ids")
        # Each dtrun has process id 1, and most of them start within one second.
        runs = [subprocess.Popen([*contained, DTRUN, "--log-dir", "logs", "--", "true"], cwd=self.folder,
                                 env=self.environment(), stderr=subprocess.PIPE, text=True) for _ in range(8)]
        ends = [(run.communicate(timeout=LIMIT)[1], run.returncode) for run in runs]
        self.assertEqual([0] * 8, [status for _, status in ends], ends)
        self.assertEqual(8, len(list((self.folder / "logs").iterdir())))

    def test_logs_without_a_named_folder_are_kept_and_their_path_is_printed(self):
        process = self.start(*self.shell(self.TEXT, "--tee", "1"))
        _, err = process.communicate(timeout=LIMIT)
        (place,) = re.findall(r"^dtrun: logs .*: (/.*)$", err, re.MULTILINE)
        self.assertTrue(place.startswith(str(self.folder / "tmp")))
        self.assertEqual("out 1\nend", pathlib.Path(place, "1", "stdout.log").read_text())

    def test_the_report_quotes_a_stream_that_went_to_a_file(self):
        process = self.dtrun(*self.shell("echo the reason >&2; exit 3", "--log-dir", "logs",
                                         "--redirects", "3", ranks=1))
        self.assertTrue(process.err.strip().endswith("the reason"), process.err)


class TerminalTest(DtrunTest):
    def on_terminal(self, text, *options, ranks=2, columns=97, then=None):
        """Returns dtrun's output to a terminal of the given width; `then` may wait for output and resize the terminal."""
        master, slave = pty.openpty()
        seen = []

        def wait_for(part):
            while part not in b"".join(seen):
                self.assertTrue(select.select([master], [], [], LIMIT)[0], b"".join(seen))
                seen.append(os.read(master, 65536))

        def resize(width):
            fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))

        resize(columns)
        process = self.start(*self.shell(text, *options, ranks=ranks), stdout=slave, stderr=slave)
        os.close(slave)
        if then is not None:
            then(process, resize, wait_for)
        output = b"".join(seen) + terminal_output(master)
        self.assertEqual(0, process.wait(LIMIT))
        return output.decode()

    def test_only_rank_0_gets_the_terminals_width(self):
        output = self.on_terminal('echo "t=${DTRUN_TERMINAL:-no} c=${COLUMNS:-no}"')
        self.assertEqual(["", "[0] t=1 c=93", "[1] t=no c=no"], sorted(screen_lines(output)))

    def test_without_a_terminal_no_rank_gets_a_width(self):
        process = self.dtrun(*self.shell('echo "t=${DTRUN_TERMINAL:-no}"'),
                             env={"DTRUN_TERMINAL": "1"})
        self.assertEqual(["[0] t=no", "[1] t=no"], sorted(process.out.splitlines()))

    def test_the_progress_line_never_mixes_with_other_lines(self):
        text = ("if [ $RANK = 0 ]; then for i in 1 2 3 4 5 6 7 8 9; do "
                r"printf 'step %d of many\r' $i >&2; sleep 0.02; done; "
                "else for i in 1 2 3 4 5 6; do echo line $i; sleep 0.03; done; fi")
        output = self.on_terminal(text)
        lines = screen_lines(output)
        self.assertEqual([f"[1] line {i}" for i in range(1, 7)] + ["[0] step 9 of many", ""],
                         [x if x.startswith("[") or not x else "[0] " + x for x in lines])
        seen = [int(number) for number in re.findall(r"step (\d) of many", output)]
        self.assertEqual((sorted(seen), 9), (seen, seen[-1]))  # a text replaces one that is queued

    def test_the_progress_line_is_redrawn_below_a_later_line(self):
        def then(process, resize, wait_for):
            wait_for(b"working")
            (self.folder / "drawn").touch()
            wait_for(b"hello\r\n\r\x1b[Jworking")
            (self.folder / "redrawn").touch()

        text = (r"if [ $RANK = 0 ]; then printf 'working\r' >&2; until [ -e redrawn ]; do sleep 0.01; done; "
                r"printf '\ndone\n' >&2; else until [ -e drawn ]; do sleep 0.01; done; echo hello; fi")
        output = self.on_terminal(text, then=then)
        self.assertEqual(["[1] hello", "[0] working", "[0] done", ""], screen_lines(output))
        self.assertEqual(2, len(re.findall(r"\x1b\[Jworking", output)))

    def test_a_live_line_is_cut_to_the_width_and_follows_a_resize(self):
        def then(process, resize, wait_for):
            wait_for(b"BEGIN")
            resize(40)
            process.send_signal(signal.SIGWINCH)  # the kernel sends it where this is the job's terminal

        text = (r"printf 'BEGIN%0150d\r' 7 >&2; read -r line <&$DTRUN_CONTROL_FD; "
                r"sleep 0.1; printf '\033[J\r' >&2; echo told $line")
        output = self.on_terminal(f"exec bash -c '{text.replace(chr(39), chr(34))}'", ranks=1, then=then)
        drawn = re.findall(r"\r\x1b\[J(BEGIN0*)\r", output)
        self.assertEqual([96, 39], [len(line) for line in drawn])
        self.assertEqual(["told columns 40", ""], screen_lines(output))

    def test_a_program_gets_the_terminals_width_only_if_all_output_goes_there(self):
        master, slave = pty.openpty()
        process = self.dtrun(*self.shell('echo "t=${DTRUN_TERMINAL:-no}"', ranks=1), stderr=slave)
        os.close(slave)
        os.close(master)
        self.assertEqual("t=no\n", process.out)

    def test_a_program_may_erase_its_progress_line(self):
        def then(process, resize, wait_for):
            for step in (b"step 1", b"step 2"):
                wait_for(step)
                (self.folder / step.decode()).touch()

        erase, drawn = r"\033[2K", "until [ -e 'step {}' ]; do sleep 0.01; done; "
        output = self.on_terminal(rf"printf '{erase}step 1\r' >&2; " + drawn.format(1)
                                  + rf"printf '\r{erase}step 2\r' >&2; " + drawn.format(2)
                                  + rf"printf '{erase}\r' >&2; echo done >&2", ranks=1, then=then)
        self.assertEqual(["done", ""], screen_lines(output.replace("\x1b[2K", "")))

    def test_line_ends_of_other_systems_are_line_ends(self):
        output = self.on_terminal(r"printf 'one\r\ntwo\r\n' >&2", ranks=1)
        self.assertEqual(["one", "two", ""], screen_lines(output))


if __name__ == "__main__":
    main()
