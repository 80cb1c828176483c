"""Training where something around it is wrong: streams, folders, memory, other files, a store that is none."""

import os
import re
import socket
import subprocess
import unittest

import train_test
from messages import assert_names
from train_test import DTRAIN, DTRUN, LIMIT, TrainTest


class Streams(TrainTest):
    def test_closed_standard_streams_do_not_end_up_in_the_metrics(self):
        command = " ".join(f"'{word}'" for word in [DTRAIN, *self.arguments("--log-every", "1")])
        for closed in ("2>&-", "<&- >&- 2>&-"):
            self.run_command(["sh", "-c", f"{command} --overwrite {closed}"])
            self.assertEqual(len([line for line in self.metrics() if "loss" in line]), 4)

    def test_a_reader_that_goes_away_does_not_end_the_training(self):
        read_end, write_end = os.pipe()
        os.close(read_end)
        result = subprocess.run([DTRAIN, *map(str, self.arguments("--log-every", "1"))], stdout=write_end,
                                stderr=write_end, timeout=LIMIT, check=False)
        os.close(write_end)
        self.assertEqual(result.returncode, 0)
        self.assertEqual(self.metrics()[-1]["event"], "end")

    def test_other_programs_variables_do_not_stop_a_single_process(self):
        environment = {**os.environ, "COLUMNS": "abc", "MASTER_PORT": "0"}
        subprocess.run([DTRAIN, *map(str, self.arguments())], env=environment, capture_output=True, timeout=LIMIT, check=True)


class Narrow(TrainTest):
    def test_the_live_line_fits_80_columns(self):
        output = train_test.Screen.on_terminal(self, [DTRAIN, *self.arguments("--eval-every", "1")], columns=80)
        for line in re.findall(r"\x1b\[J([^\r]+)\r", output):
            self.assertLess(len(line), 80)
            self.assertNotIn("\n", line)
        # Memory and MFU have left the line; the time left is there.
        self.assertRegex(output, r"\x1b\[Jstep 4/4 \| loss [^\r\n]*tok/s \| eta \d+:\d\d[^\r\n]*\r")


class Folder(TrainTest):
    def test_a_run_that_cannot_start_leaves_the_old_one_alone(self):
        self.single()
        before = (self.run_dir / "metrics.jsonl").read_bytes()
        result = self.single("--overwrite", "--freeze", "nothing", status=2)
        self.assertIn("--freeze", result.stderr)
        self.assertEqual((self.run_dir / "metrics.jsonl").read_bytes(), before)
        self.assertTrue((self.run_dir / "final/model.safetensors").exists())

    def test_a_saved_configuration_does_not_overwrite(self):
        self.single()
        self.single("--overwrite")
        result = self.run_command([DTRAIN, "--config", self.run_dir / "config.json"], 2)
        assert_names(result.stderr, "dtrain: error", "--overwrite")

    def test_of_two_runs_that_come_together_one_is_refused(self):
        command = [DTRAIN, *map(str, self.arguments(steps=20))]
        both = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                for _ in range(2)]
        errors = [process.communicate(timeout=LIMIT)[1] for process in both]
        self.assertEqual(sorted(process.returncode for process in both), [0, 2], errors)
        self.assertEqual([line["step"] for line in self.metrics() if "loss" in line], list(range(1, 21)))


class Memory(TrainTest):
    def test_running_out_of_memory_is_status_8_and_one_line(self):
        flags = self.arguments("--width", "1024", "--neurons", "16384", "--heads", "16", "--seq-len", "32",
                               "--memory-limit", "1TiB")  # else a machine with little refuses the start, with status 2
        command = "ulimit -v 3000000; exec " + " ".join(f"'{word}'" for word in [DTRAIN, *flags])
        result = self.run_command(["sh", "-c", command], 8)
        self.assertEqual(len([line for line in result.stderr.splitlines() if "error" in line]), 1, result.stderr)
        self.assertIn("error: out", result.stderr)


class Ranks(TrainTest):
    def test_ranks_that_read_different_text_are_told(self):
        other = self.root / "other"
        other.mkdir()
        (other / "bible.txt").write_bytes(self.text.read_bytes().replace(b"God", b"Dog"))
        wrapper = self.root / "elsewhere.sh"
        wrapper.write_text(f'#!/bin/sh\n[ "$RANK" = 1 ] && cd {other} || cd {self.root}\nexec "$@"\n')
        wrapper.chmod(0o755)
        flags = self.arguments()
        flags[flags.index(self.text)] = "bible.txt"
        result = self.run_command([DTRUN, "-n", "2", "--", wrapper, DTRAIN, "--strategy", "ddp", *flags], 2)
        assert_names(result.stderr, "training data")

    def test_a_store_that_accepts_but_never_answers_is_named_within_the_deadline(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            environment = {**os.environ, "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                           "MASTER_PORT": str(port)}
            result = subprocess.run(
                [DTRAIN, "--strategy", "ddp", "--comm-timeout", "1", *map(str, self.arguments())], env=environment,
                capture_output=True, text=True, timeout=LIMIT, check=False)
        self.assertEqual(result.returncode, 5, result.stderr)
        self.assertIn(f"127.0.0.1:{port}", result.stderr)


if __name__ == "__main__":
    unittest.main()
