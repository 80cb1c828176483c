"""A restart by dtrun never begins before the last committed step, repeats the steps that were not saved, and needs no
log folder."""

import shutil
import subprocess
import unittest

from dtrain_harness import SideBySide
from messages import assert_names, lines_naming
from run_folder_test import content_of
from storage_test import StorageTest
from train_test import DTRAIN, DTRUN, LIMIT

CHECKPOINT = 6


class Restarts(SideBySide, StorageTest):
    """A dtrun whose first attempt is killed after a checkpoint, and whose second attempt finds a changed folder."""

    STEPS = 24

    def restarted(self, second, third="", *, restarts=3, status=0):
        script = self.killed_at_write(20, second or ":", third or ":")
        command = [DTRUN, "-n", "1", "--max-restarts", str(restarts), "--restart-backoff", "0.02", "--", script, DTRAIN,
                   *self.arguments("--checkpoint-every", "4", "--resume", "auto", steps=self.STEPS)]
        with self.errors().open("w") as errors:
            # The restart waits for a missing folder.
            result = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=errors, timeout=3 * LIMIT, check=False)
        stderr = self.errors().read_text()
        self.assertEqual(result.returncode, status, stderr)
        return stderr

    def errors(self):
        """What the job has written to its standard error."""
        return self.root / (self.run_dir.name + ".errors")

    def refusals(self, stderr):
        return [line for line in stderr.splitlines() if f"run folder '{self.run_dir}': found" in line and "error: " in line]

    def assert_whole(self):
        self.assert_same_run(self.run_dir, self.whole_run("whole", "--checkpoint-every", "4", steps=self.STEPS))

    def check_wait_for_a_run_folder_that_is_gone(self):
        away = self.root / "away"
        stderr = self.restarted(f"mv {self.run_dir} {away}", f"[ ! -e {self.run_dir} ] && mv {away} {self.run_dir}")
        self.assertEqual(len(set(self.refusals(stderr))), 1, stderr)
        self.assert_whole()

    def check_a_run_folder_that_comes_back_costs_no_restart(self):
        away = self.root / "away-for-a-moment"
        told = f"for i in $(seq 1800); do grep -q 'trying again' {self.errors()} && break; sleep 0.1; done"
        stderr = self.restarted(f"mv {self.run_dir} {away}; ({told}; mv {away} {self.run_dir}) &", restarts=1)
        self.assertEqual(self.refusals(stderr), [])
        self.assertIn("trying again", stderr)
        self.assert_whole()

    def check_leave_another_run_alone(self):
        away, other = self.root / "away-for-another", self.root / "other"
        self.single("--checkpoint-every", "4", steps=self.STEPS, run_dir=other)
        before = content_of(other)
        stderr = self.restarted(f"mv {self.run_dir} {away}; mv {other} {self.run_dir}",
                                f"mv {self.run_dir} {other}; mv {away} {self.run_dir}")
        self.assertEqual(len(set(self.refusals(stderr))), 1, stderr)
        self.assertEqual(content_of(other), before)
        self.assert_whole()

    def check_do_not_begin_below_a_checkpoint_that_is_gone(self):
        stderr = self.restarted(f"rm -r {self.run_dir}/checkpoints", restarts=1, status=CHECKPOINT)
        self.assertEqual(len(set(self.refusals(stderr))), 1, stderr)

    def check_go_on_below_one_that_is_damaged(self):
        newest = f"{self.run_dir}/checkpoints/$(ls -v {self.run_dir}/checkpoints | grep -x 'step-[0-9]*' | tail -1)"
        stderr = self.restarted(f"truncate -s 5 {newest}/manifest.json")
        self.assertEqual(self.refusals(stderr), [])
        assert_names(stderr, "older")
        self.assert_whole()

    def check_go_on_below_one_that_an_attempt_has_set_aside_and_then_failed(self):
        newest = f"$(ls -v {self.run_dir}/checkpoints | grep -x 'step-[0-9]*' | tail -1)"
        stderr = self.restarted(f"cd {self.run_dir}/checkpoints; n={newest}; mv $n $n.superseded-18ea4b45cafe00-12; cd - > /dev/null")
        self.assertEqual(self.refusals(stderr), [])
        self.assert_whole()

    def check_another_run_of_the_same_script_begins_at_its_start(self):
        """The restart finishes the first run, and then the second run begins: the steps of the first do not count for it."""
        first, second = self.root / "first", self.root / "second"
        train = " ".join(str(word) for word in (DTRAIN, *self.arguments("--checkpoint-every", "2", run_dir="$RUN", steps=8)))
        text = (f'set -e; RUN={first}; {train} --resume auto; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 7; '
                f'RUN={second}; {train} --resume auto')
        self.run_command([DTRUN, "-n", "1", "--max-restarts", "1", "--restart-backoff", "0.02", "--", "bash", "-c", text])
        for folder in (first, second):
            self.assertTrue((folder / "final" / "model.safetensors").exists())

    def check_know_the_last_committed_step(self):
        seen = self.root / "seen"
        text = (f'echo "${{DTRUN_COMMITTED-none}}" >> {seen}; '
                'case $TORCHELASTIC_RESTART_COUNT in 0) echo "committed 8" >&$DTRUN_CONTROL_FD; exit 7 ;; '
                '1) exit 7 ;; 2) echo "committed 4" >&$DTRUN_CONTROL_FD; exit 7 ;; esac')
        self.run_command([DTRUN, "-n", "1", "--max-restarts", "3", "--restart-backoff", "0.02", "--", "bash", "-c", text])
        self.assertEqual(seen.read_text().split(), ["none", "=8", "=8", "=4"])

    def check_know_the_step_of_each_run(self):
        for nodes in ((), ("--emulate-nodes", "2")):
            seen = self.root / f"runs-seen-{len(nodes)}"
            text = (f'echo "$RANK $TORCHELASTIC_RESTART_COUNT ${{DTRUN_COMMITTED-none}}" >> {seen}; '
                    '[ $TORCHELASTIC_RESTART_COUNT = 3 ] && exit; [ $RANK = 0 ] || exec sleep 60; case $TORCHELASTIC_RESTART_COUNT in '
                    '0) printf "run one\\ncommitted 8\\nrun two\\nprogress 1\\ncommitted 2\\n" >&$DTRUN_CONTROL_FD ;; '
                    '1) printf "run one\\ncommitted 9\\n" >&$DTRUN_CONTROL_FD ;; esac; exit 7')
            self.run_command([DTRUN, *nodes, "-n", "1", "--max-restarts", "3", "--restart-backoff", "0.02", "--", "bash", "-c", text])
            lines = set(seen.read_text().splitlines())
            expected = {"0 0 none", "0 1 one=8 two=2", "0 2 one=9 two=2", "0 3 one=9 two=2", *(["1 3 one=9 two=2"] if nodes else [])}
            self.assertLessEqual(expected, lines)

    def check_none_of_a_scripts_runs_begins_below_its_checkpoint(self):
        first, second = self.root / "script-first", self.root / "script-second"
        train = " ".join(str(word) for word in (DTRAIN, *self.arguments("--checkpoint-every", "2", run_dir="$RUN", steps=8)))
        text = (f'set -e; [ $TORCHELASTIC_RESTART_COUNT = 0 ] || mv {first} {first}-away; RUN={first}; {train} --resume auto; '
                f'RUN={second}; {train} --resume auto; exit 7')
        result = subprocess.run([DTRUN, "-n", "1", "--max-restarts", "1", "--restart-backoff", "0.02", "--", "bash", "-c", text],
                                capture_output=True, text=True, timeout=3 * LIMIT, check=False)
        self.assertEqual(result.returncode, CHECKPOINT, result.stderr)
        self.assertIn(f"run folder '{first}': found", result.stderr)
        self.assertFalse((first / "checkpoints").exists())


class LastSteps(StorageTest):
    """A run whose disk has room for the final model but not for its only checkpoint: the limit lies between their sizes."""

    LIMITED = "ulimit -f 120"

    def setUp(self):
        super().setUp()
        self.model = self.run_dir / "final/model.safetensors"

    def assert_trained_anew(self):
        self.assertEqual(self.steps_saved(), [4])
        self.assert_same_run(self.run_dir, self.whole_run("saved"))

    def end_without_checkpoint(self, *flags):
        command = ["bash", "-c", f'{self.LIMITED}; exec "$@"', "bash", DTRAIN, *map(str, self.arguments(*flags))]
        self.run_command(command, CHECKPOINT)
        self.assertEqual(self.steps_saved(), [])
        return self.model.read_bytes()

    def test_without_a_checkpoint_are_taken_again_by_a_restart(self):
        limited = f'[ $TORCHELASTIC_RESTART_COUNT != 0 ] || {self.LIMITED}; exec "$@"'
        for flags in ((), ("--resume", "auto"), ("--overwrite",)):
            with self.subTest(flags):
                self.run_dir = self.root / f"limited{''.join(flags)}"
                result = self.run_command([DTRUN, "-n", "1", "--max-restarts", "1", "--restart-backoff", "0.02", "--",
                                           "bash", "-c", limited, "bash", DTRAIN, *self.arguments(*flags)])
                self.assertIn("restart 1 of 1", result.stderr)
                self.assert_trained_anew()

    def test_without_a_checkpoint_are_taken_again_by_hand(self):
        model = self.end_without_checkpoint()
        self.single(status=2)
        self.assertEqual(self.model.read_bytes(), model)
        self.single("--resume", "auto")
        self.assert_trained_anew()

    def test_are_not_taken_again_where_nothing_tells_that_they_were_not_saved(self):
        """A finished run of which only the model and the settings were kept."""
        self.single()
        shutil.rmtree(self.run_dir / "checkpoints")
        (self.run_dir / "metrics.jsonl").unlink()
        model = self.model.read_bytes()
        self.single("--resume", "auto", status=2)
        self.assertEqual(self.model.read_bytes(), model)

    def test_are_not_taken_again_once_they_are_saved(self):
        """The checkpoint was moved away, but metrics.jsonl records it."""
        self.single()
        (self.run_dir / "checkpoints").rename(self.root / "moved")
        model, losses = self.model.read_bytes(), self.losses()
        self.single("--resume", "auto", status=2)
        self.assertEqual((self.model.read_bytes(), self.losses()), (model, losses))


class Logs(StorageTest):
    def test_a_log_folder_that_vanishes_replaces_no_restart(self):
        for number, then in enumerate((":", "touch logs")):
            folder = self.root / f"logs-{number}"
            folder.mkdir()
            text = (f"cd {folder}; echo ${{TORCHELASTIC_ERROR_FILE+set}} > error-file; "
                    f"[ $TORCHELASTIC_RESTART_COUNT = 1 ] && echo well && exit 0; rm -r logs; {then}; exit 7")
            command = ["env", "-C", folder, DTRUN, "-n", "1", "--max-restarts", "1", "--restart-backoff", "0.02", "--log-dir", "logs",
                       "--redirects", "3", "--", "bash", "-c", text]
            stderr = self.run_command(command).stderr
            self.assertEqual(bool(lines_naming(stderr, "attempt 1", "logs")), then != ":", stderr)
            logs = list(folder.glob("logs/*/attempt_1/0/stdout.log"))
            self.assertEqual([log.read_text() for log in logs], ["well\n"] if then == ":" else [])
            self.assertEqual((folder / "error-file").read_text(), "set\n" if then == ":" else "\n")


if __name__ == "__main__":
    unittest.main()
