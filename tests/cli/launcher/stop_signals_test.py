"""Stop signals: during startup, in containers, while ranks wait, through pipes and on terminals."""

import contextlib
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import subprocess
import threading
import time
import unittest

from dtrain_harness import free_port, front_end_alone, make_folder, run
from dtrun_harness import children_of, state_of, wait_until
from messages import assert_names, lines_naming
from resume_test import EVERY, ResumeTest
from train_test import DTRAIN, DTRUN, LIMIT

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def has_containers():
    return subprocess.run([*CONTAINER, "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0


def signals_of(pid, field):
    """The signals that a process catches (SigCgt), ignores (SigIgn) or blocks (SigBlk); empty if it has exited."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return set()
    mask = int(re.search(rf"^{field}:\s*(\w+)", status, re.MULTILINE)[1], 16)
    return {number for number in signal.Signals if mask >> (number - 1) & 1}


def line_with(process, text):
    """The next line of its standard error with this text; kills a program that never writes it."""
    timer = threading.Timer(LIMIT, process.kill)
    timer.start()
    try:
        return next((line for line in iter(process.stderr.readline, "") if text in line), "")
    finally:
        timer.cancel()


def wait_for_handlers(pid):
    wait_until(lambda: signals_of(pid, "SigCgt") >= {signal.SIGTERM}, "the handlers")


class Early(ResumeTest):
    """From the start of main, in every command, before LibTorch is loaded."""

    COMMANDS = {"train": ("train", "--data", "text"), "generate": ("generate", "--from", "run"), "verify": ("verify",),
                "plan": ("plan",), "doctor": ("doctor",), "data": ("data", "prepare", "text", "--output", "t.dtok"),
                "checkpoint": ("checkpoint", "verify", "run"), "report": ("report", "run"), "help": ("--help",),
                "completion": ("completion", "bash"), "schedule": ("schedule",), "settings": ("settings",)}

    def test_handlers_are_installed_before_anything_else_in_every_command(self):
        folder = make_folder(self)
        program = front_end_alone(folder)
        (folder / "text").write_bytes(b"some text. " * 1000)
        commands = {name: [program, *words] for name, words in self.COMMANDS.items()}
        commands["dtrun"] = [DTRUN, "-n", "1", "--", "true"]
        for name, command in commands.items():
            with self.subTest(name):
                run("strace", "-o", folder / "trace", "-e", "trace=rt_sigaction,openat,prlimit64,read", *command, cwd=folder,
                    status=None)
                lines = (folder / "trace").read_text().splitlines()
                of_signals = [number for number, line in enumerate(lines)
                              if any(f"rt_sigaction({each.name}, {{" in line for each in STOPS)][:len(STOPS)]
                # The loader's last system call is for its stack; libstdc++ may load the C locale. The rest belongs to main.
                first = next(number for number, line in enumerate(lines)
                             if "RLIMIT_NOFILE" in line or "rt_sigaction(SIGPIPE" in line)
                self.assertEqual(len(of_signals), len(STOPS), lines)
                self.assertLess(max(of_signals), first)

    def test_a_signal_while_libtorch_is_loaded_ends_the_program(self):
        process = self.start()
        wait_for_handlers(process.pid)
        process.send_signal(signal.SIGHUP)
        self.end_of(process, -signal.SIGHUP)
        self.assertFalse((self.run_dir / "metrics.jsonl").exists())

    def test_a_quit_while_training_ends_it_at_once_and_says_that_nothing_is_saved(self):
        process = self.start("--checkpoint-every", "none")
        self.wait_for_step(2)
        process.send_signal(signal.SIGQUIT)
        error = self.end_of(process, -signal.SIGQUIT)
        assert_names(error, "SIGQUIT")
        self.assertEqual(self.steps_saved(), [])

    def test_an_ignored_hangup_stays_ignored(self):
        self.progress = self.root / "nohup.txt"
        with self.progress.open("w") as output:
            process = self.launched(["nohup", DTRAIN, *self.arguments(steps=10**6)], stdout=output)
        self.wait_for_step(2)
        self.assertIn(signal.SIGHUP, signals_of(process.pid, "SigIgn"))
        process.send_signal(signal.SIGHUP)
        self.wait_for_step(self.losses()[-1][0] + 2)
        process.terminate()
        assert_names(self.end_of(process, 9), "SIGTERM", "saved")


@unittest.skipUnless(has_containers(), "needs namespaces: of process numbers")
class Containers(ResumeTest):
    """As process 1, for which the kernel skips default signal actions."""

    def contained(self, *command, **options):
        """The process of unshare, and process 1 of the container."""
        process = self.launched([*CONTAINER, *command], **options)
        (first,) = wait_until(lambda: children_of(process.pid), "the container")
        name = pathlib.Path(command[0]).name
        wait_until(lambda: pathlib.Path(f"/proc/{first}/comm").read_text().strip() == name, "the program")
        wait_for_handlers(first)
        return process, first

    def assert_ends(self, number, *command, **options):
        process, first = self.contained(*command, **options)
        os.kill(first, number)
        self.end_of(process, 128 + number)

    def test_a_start_can_be_stopped(self):
        for number in (signal.SIGINT, signal.SIGQUIT):
            with self.subTest(number.name):
                self.assert_ends(number, DTRAIN, *self.arguments(steps=10**6))

    def test_other_commands_can_be_stopped(self):
        large = shutil.copy(self.text, self.root / "large.txt")
        os.truncate(large, 1 << 31)  # reading it takes seconds, but it uses no disk space
        for command in (("data", "prepare", large, "--output", self.root / "large.dtok"), ("doctor",)):
            with self.subTest(command[0]):
                self.assert_ends(signal.SIGTERM, DTRAIN, *command)

    def test_waiting_launchers_and_ranks_can_be_stopped(self):
        alone = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        process, first = self.contained(DTRAIN, "--strategy", "ddp", *self.arguments(), env={**os.environ, **alone})
        self.assertIn("rank 1 of 2", line_with(process, "waiting for"))
        os.kill(first, signal.SIGTERM)
        self.end_of(process, 143)
        for nodes in (("--nnodes", "2", "--node-rank", "0"), ("--nnodes", "2", "--node-rank", "1")):
            process, first = self.contained(DTRUN, *nodes, "--master-addr", "127.0.0.1", "--master-port", free_port(), "--",
                                            "true")
            self.assertIn("node", line_with(process, "waiting for"))
            os.kill(first, signal.SIGHUP)
            self.end_of(process, 129)

    def test_a_run_saves_and_a_second_ctrl_c_ends_it(self):
        process, first = self.contained(DTRAIN, *self.arguments("--checkpoint-every", "100", steps=10**6))
        self.wait_for_step(2)
        os.kill(first, signal.SIGHUP)
        assert_names(self.end_of(process, 9), "SIGHUP", "saved")
        self.run_dir = self.root / "long-steps"
        process, first = self.contained(DTRAIN, *self.arguments("--global-batch", "65536", "--microbatch", "4", steps=10**6))
        wait_until(lambda: self.events("start"), "the first step, which takes long")
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(first, number)
            line = line_with(process, "stopping")
            self.assertTrue(line)
            self.assertEqual("Ctrl-C" in line, number == signal.SIGINT, line)
        os.kill(first, signal.SIGINT)
        self.end_of(process, 130)


class Waiting(ResumeTest):
    """Waiting ranks name the ranks that they wait for, and stop at once on a signal."""

    def test_a_stop_before_the_first_step_is_told_by_one_rank(self):
        for rank, number, words in ((0, signal.SIGINT, ("--strategy", "ddp", *self.arguments())), (0, signal.SIGTERM, ("doctor",)),
                                    (1, signal.SIGTERM, ("--strategy", "ddp", *self.arguments()))):
            with self.subTest(words[0], rank=rank, signal=number.name):
                process = self.rank(rank, 2, words=words)
                line = line_with(process, "waiting for")
                self.assertTrue(line)
                if rank == 1:
                    self.assertRegex(line, rf"^dtrain: waiting .*rank 0, .* at 127.0.0.1:{self.port} \(Connection refused\)")
                process.send_signal(number)
                error = self.end_of(process, -number)
                self.assertEqual(len(lines_naming(error, "dtrain: stopped by " + number.name)), int(rank == 0), error)
                self.assertEqual(len(error.splitlines()) - len(lines_naming(error, "waiting for")), int(rank == 0), error)

    def test_an_output_that_nobody_reads_does_not_keep_a_process_from_ending(self):
        read, write = os.pipe()
        self.addCleanup(os.close, read)
        os.set_blocking(write, False)
        with contextlib.suppress(BlockingIOError):
            while os.write(write, bytes(4096)):
                pass
        os.set_blocking(write, True)
        process = self.rank(0, 2, stderr=write)
        os.close(write)
        time.sleep(3)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(LIMIT), -signal.SIGTERM)

    def test_a_stop_of_dtrun_before_the_first_step_is_told_once(self):
        alone = (DTRUN, "-n", "2", "--nnodes", "1", "--", "sh", "-c", f'[ "$RANK" = 1 ] && exec sleep 60; exec {DTRAIN} "$@"', "sh")
        process = self.launched([*alone, "--strategy", "ddp", *self.arguments()])
        self.assertTrue(line_with(process, "waiting for"))
        process.send_signal(signal.SIGINT)
        error = self.end_of(process, 130)
        self.assertEqual(len(lines_naming(error, "[0] dtrain: stopped")), 1, error)
        self.assertEqual(lines_naming(error, "stopped by SIGTERM"), [])
        self.assertEqual(len(lines_naming(error, "dtrun: stopped", "SIGINT")), 1, error)

    def rank(self, number, ranks, words=None, stderr=subprocess.PIPE, **variables):
        environment = {"RANK": str(number), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
                       "MASTER_PORT": str(self.port), **variables}
        environment = {name: value for name, value in environment.items() if value}
        words = words or ("--strategy", "ddp", *self.arguments())
        return self.launched([DTRAIN, *words], stderr=stderr, env={**os.environ, **environment})

    def setUp(self):
        super().setUp()
        self.port = free_port()

    def test_without_a_launcher_rank_0_names_missing_ranks_and_how_to_start_all(self):
        first, third = self.rank(0, 4), self.rank(2, 4)
        line = line_with(first, "ranks 1, 3 of 4")
        self.assertRegex(line, r"^dtrain: waiting .*ranks 1, 3 of 4, \S+ s .*10 min \(--comm-timeout\); ")
        self.assertIn("dtrun --standalone -n 4 -- dtrain", line)
        ends = ((third, signal.SIGHUP), (first, signal.SIGTERM))
        for process, number in ends:
            process.send_signal(number)
        for process, number in ends:
            self.assertNotRegex(self.end_of(process, -number), r"waiting .*\branks\b")
        self.assertFalse(self.run_dir.exists())

    def test_tasks_of_srun_name_the_command_for_a_shell(self):
        step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0",
                "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1", "RANK": "", "WORLD_SIZE": "", "MASTER_ADDR": ""}
        process = self.rank(0, 2, **step)
        self.assertRegex(line_with(process, "waiting for"), r"waiting .*rank 1 of 2, .*srun --pty.* dtrun --standalone -n 2 -- dtrain")
        process.terminate()
        self.end_of(process, -signal.SIGTERM)
        step = {name: value for name, value in step.items() if value}
        error = run(DTRAIN, *self.arguments("--strategy", "single"), environment=step, status=2).stderr
        self.assertIn("dtrun --standalone -n 2 -- dtrain", error.splitlines()[-1])

    def test_under_dtrun_two_ranks_report_for_all(self):
        late = '[ $RANK = 0 ] && until [ -e "$GO" ]; do sleep 0.05; done; exec "$@"'
        go = self.root / "go"
        process = self.launched([DTRUN, "-n", "4", "--", "sh", "-c", late, "sh", DTRAIN, "--strategy", "ddp",
                                 *self.arguments("--grad-accum", "1", steps=1)], env={**os.environ, "GO": str(go)})
        self.assertRegex(line_with(process, "waiting for"), r"^\[1\] dtrain: waiting .*rank 0, .*\(--comm-timeout\)$")
        go.touch()
        self.assertNotRegex(self.end_of(process, 0), r"\[[23]\] .*waiting")


class Pipes(ResumeTest):
    """Ctrl-C reaches a whole pipeline: the reader of the output ends first."""

    def interrupted(self, text, launcher=()):
        """The status of dtrain in a shell command whose process group receives Ctrl-C."""
        command = " ".join(map(str, [*launcher, DTRAIN, *self.arguments(*EVERY, "--log-every", "1", steps=10**6)]))
        status = self.root / "status"
        status.unlink(missing_ok=True)
        # With a trap the shell survives; its children have the default action.
        script = f"trap : INT; {text.replace('DTRAIN', command)}; echo ${{PIPESTATUS[0]}} > {status}.new; mv {status}.new {status}"
        with open(os.devnull, "w") as null:
            shell = subprocess.Popen(["bash", "-c", script], stdin=subprocess.DEVNULL, stdout=null, stderr=null,
                                     start_new_session=True)
        self.addCleanup(lambda: (shell.kill(), shell.wait()))
        self.wait_for_step(3)
        os.killpg(shell.pid, signal.SIGINT)
        shell.wait(LIMIT)
        return int(status.read_text())

    def assert_saved(self):
        step = self.losses()[-1][0]
        self.assertEqual(self.steps_saved()[-1], step)
        self.assertTrue((self.run_dir / "REQUEUE").exists())
        (stop,) = self.events("stop")
        self.assertEqual((stop["step"], stop["checkpoint"]), (step, str(self.run_dir / "checkpoints" / f"step-{step}")))
        self.assertEqual(stop["reason"], "SIGINT")

    def test_the_run_saves_behind_any_reader_of_its_output(self):
        log = self.root / "log"
        for number, (text, *launcher) in enumerate((
                [f"DTRAIN 2>&1 | tee {log}"], ["DTRAIN 2>&1 | head -n 1"], [f"DTRAIN 2>&- | tee {log}"],
                [f"DTRAIN 2>&1 | tee {log}", DTRUN, "-n", "1", "--"], ["DTRAIN >&- 2>&-", DTRUN, "-n", "1", "--"])):
            with self.subTest(text, launcher=launcher):
                self.run_dir = self.root / f"read-{number}"
                self.assertEqual(self.interrupted(text, launcher), 9)
                self.assert_saved()


class Terminals(ResumeTest):
    def on_terminal(self, *command):
        """The leader of a session on a new terminal, and the terminal."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.execv(str(command[0]), [str(word) for word in command])
        return pid, terminal

    def test_a_run_whose_terminal_is_closed_saves(self):
        for launcher in ((), (DTRUN, "-n", "2", "--")):
            with self.subTest(launcher=launcher):
                self.run_dir = self.root / f"closed-{len(launcher)}"
                ddp = ("--strategy", "ddp") if launcher else ()
                pid, terminal = self.on_terminal(*launcher, DTRAIN, *ddp, *self.arguments("--checkpoint-every", "1000",
                                                                                          steps=10**6))
                self.wait_for_step(2)
                os.close(terminal)
                self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 9)
                self.assertEqual(self.steps_saved(), [self.losses()[-1][0]])
                self.assertTrue((self.run_dir / "REQUEUE").exists())
                self.assertEqual(self.events("stop")[0]["reason"], "SIGHUP")
                self.assertIn(" by SIGHUP\n", (self.run_dir / "REQUEUE").read_text())

    def shell(self):
        pid, terminal = self.on_terminal(shutil.which("bash"), "--norc", "--noprofile", "-i")
        self.addCleanup(lambda: (os.kill(pid, signal.SIGKILL), os.waitpid(pid, 0), os.close(terminal)))
        return terminal

    @staticmethod
    def drain(terminal):
        while select.select([terminal], [], [], 0)[0]:
            os.read(terminal, 65536)

    def grown(self, terminal, steps):
        """Waits until the run has done `steps` more steps."""
        last = self.losses()[-1][0]

        def has_grown():
            self.drain(terminal)
            return self.losses()[-1][0] >= last + steps
        wait_until(has_grown, "more steps")

    def test_ctrl_z_stops_the_ranks_of_dtrun_and_fg_continues_them(self):
        """Pauses for longer than all timeouts."""
        nodes = ("--emulate-nodes", "2", "-n", "1", "--heartbeat-timeout", "3")
        for number, (nodes, backend) in enumerate(((("-n", "2"), "shm"), (nodes, "gloo"))):
            with self.subTest(nodes=nodes):
                self.run_dir = self.root / f"suspended-{number}"
                terminal = self.shell()
                command = [DTRUN, *nodes, "--hang-timeout", "3", "--", DTRAIN, "--strategy", "ddp",
                           *self.arguments("--checkpoint-every", "100000", "--comm-timeout", "6", "--backend", backend,
                                           steps=10**6)]
                end = self.root / f"end-{number}"
                os.write(terminal, f"{' '.join(map(str, command))}\n".encode())
                self.wait_for_step(3)
                os.write(terminal, b"\x1a")
                ranks = self.dtrains_of(self.run_dir)
                self.assertEqual(len(ranks), 2)
                wait_until(lambda: [state_of(rank) for rank in ranks] == ["T", "T"], "the ranks to stop")
                self.drain(terminal)
                before = self.losses()[-1][0]
                self.pause(8)
                self.assertEqual(self.losses()[-1][0], before)
                os.write(terminal, f"fg; echo $? > {end}.new; mv {end}.new {end}\n".encode())
                wait_until(lambda: "T" not in [state_of(rank) for rank in ranks], "the ranks to go on")
                self.grown(terminal, 3)
                self.pause(2)  # longer than any check needs to report a timeout
                self.grown(terminal, 3)
                os.write(terminal, b"\x03")

                def has_ended():
                    self.drain(terminal)
                    return end.exists()
                wait_until(has_ended, "the end")
                self.assertEqual(end.read_text(), "9\n")

    @staticmethod
    def pause(seconds):
        select.select([], [], [], seconds)

    @staticmethod
    def dtrains_of(run_dir):
        found = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                words = pathlib.Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
                if words[0] == str(DTRAIN).encode() and str(run_dir).encode() in words:
                    found.append(int(entry))
        return found

    def test_a_suspended_job_can_be_stopped(self):
        terminal = self.shell()
        command = [DTRUN, "-n", "2", "--", DTRAIN, "--strategy", "ddp", *self.arguments(*EVERY, steps=10**6)]
        os.write(terminal, " ".join(map(str, command)).encode() + b"\n")
        self.wait_for_step(3)
        os.write(terminal, b"\x1a")
        ranks = self.dtrains_of(self.run_dir)
        wait_until(lambda: [state_of(rank) for rank in ranks] == ["T", "T"], "the ranks to stop")
        os.write(terminal, b"kill %1\n")  # kill also continues the job
        wait_until(lambda: (self.run_dir / "REQUEUE").exists(), "the saved run")
        self.assertEqual(self.steps_saved()[-1], self.losses()[-1][0])
        wait_until(lambda: not self.dtrains_of(self.run_dir), "the end")


if __name__ == "__main__":
    unittest.main()
