"""On one node and on two, dtrun exits with the statuses documented in docs/guide/exit-status.md."""

import os
import pathlib
import re
import signal
import socket

from dtrain_harness import overriding
from dtrun_harness import DTRUN, RANKS, DtrunTest, main

DTRAIN = str(pathlib.Path(DTRUN).with_name("dtrain"))
TABLE = pathlib.Path(os.environ["DTRAIN_SOURCE_DIR"], "docs", "guide", "exit-status.md")
LAUNCHERS = {"one node": ("-n", "2"), "two nodes": ("--emulate-nodes", "2", "-n", "1")}  # of two ranks
MORE_RANKS = {"segmentation fault": ("[ $RANK = 1 ] && kill -SEGV $$; exec sleep 20", 139),
              "one stays after the other saved": ("[ $RANK = 1 ] && exit 9; exec sleep 20", 5)}
TINY = ("--strategy", "ddp", "--layers", "1", "--width", "16", "--heads", "2", "--neurons", "16", "--seq-len", "16",
        "--global-batch", "2", "--threads", "1", "--data", "text", "--steps", "3", "--overwrite", "--run-dir", "run")
# Flags of dtrain and the expected status.
TRAINING = {"unknown setting": (("--widht", "3"), 2),
            "value beyond its range": (("--heads", "0"), 2),
            "missing data": (("--data", "nowhere"), 3),
            "missing checkpoint": (("--init-from", "nowhere"), 6),
            "infinite loss": (("--lr", "1e30", "--grad-clip", "0", "--steps", "20"), 7)}


def documented():
    """All numeric statuses in the table."""
    return [int(number) for number in re.findall(r"^\| (\d+) \|", TABLE.read_text(), re.MULTILINE)]


class Statuses(DtrunTest):
    def assert_status(self, name, status, *program, options=(), launchers=LAUNCHERS):
        for launcher in launchers:
            with self.subTest(name, launcher=launcher):
                self.dtrun(*LAUNCHERS[launcher], *options, "--", *program, status=status)

    def test_failures_of_ranks(self):
        for name, (text, status) in {**RANKS, **MORE_RANKS}.items():
            self.assert_status(name, status, "sh", "-c", text, options=("--stop-grace", "0.2"))

    def test_dtrun_exits_with_the_status_of_the_failed_rank(self):
        statuses = documented()
        self.assertLessEqual({0, *range(2, 14), 70}, set(statuses))
        for status in {*statuses, 1, 255} - {0, 9}:  # 9: above
            self.assert_status(f"status {status}", status, "sh", "-c", f"[ $RANK = 1 ] && exit {status}; exec sleep 20")

    def test_failures_of_dtrun(self):
        self.assert_status("no such program", 12, "./nowhere")
        self.assert_status("unknown option", 2, "true", options=("--wrong",))
        self.dtrun("--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", "0",
                   "--rdzv-timeout", "0.2", "true", status=10)
        with socket.create_server(("127.0.0.1", 0)) as holder:
            taken = self.dtrun("--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port",
                               str(holder.getsockname()[1]), "true")
        self.assertEqual(11, taken.returncode, taken.err)

    def test_signals_to_dtrun(self):
        obeys, saves = ": > here$RANK; exec sleep 20", "trap 'kill -KILL $!; exit 9' TERM; : > here$RANK; sleep 20 & wait $!"
        for number, text, status in ((signal.SIGTERM, obeys, 143), (signal.SIGINT, obeys, 130), (signal.SIGINT, saves, 9)):
            for launcher, options in LAUNCHERS.items():
                with self.subTest(number=number, text=text, launcher=launcher):
                    self.assertEqual(status, self.status_after(number, *options, "--", "sh", "-c", text))

    def status_after(self, number, *arguments):
        """The status of dtrun after a signal, sent once both ranks have started."""
        process = self.start(*arguments)
        self.wait_for_files("here0", "here1")
        process.send_signal(number)
        process.communicate(timeout=20)
        for rank in range(2):
            (self.folder / f"here{rank}").unlink()
        return process.returncode

    def test_failures_of_training(self):
        """On two nodes only: many other tests cover one node."""
        (self.folder / "text").write_bytes(bytes(range(32, 96)) * 40)
        for name, (flags, status) in TRAINING.items():
            self.assert_status(name, status, DTRAIN, *overriding(TINY, *flags), launchers=["two nodes"])
        late = '[ $RANK = 1 ] && exec sleep 20; exec "$@"'
        self.assert_status("absent rank", 5, "sh", "-c", late, "sh", DTRAIN, *TINY, "--comm-timeout", "0.5",
                           launchers=["two nodes"])
        (self.folder / "run" / "STOP").touch()
        self.assert_status("saved", 9, DTRAIN, *TINY[:-3], "--run-dir", "run", "--resume", "auto",
                           "--checkpoint-every", "100", launchers=["two nodes"])


if __name__ == "__main__":
    main()
