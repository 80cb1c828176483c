"""Trains the same few steps in many processes, for each way to use threads, and compares every bit; see scripts/soak.sh.

A library that chooses its code in the first call of a process may choose otherwise when two threads make that call at
once: such a difference is rare, stays for the whole process, and no test that runs once sees it."""

import collections
import subprocess
import sys
import tempfile

from runs import TEXT, digest_of, launched

MODEL = ("--layers", 2, "--width", 64, "--heads", 2, "--neurons", 256, "--seq-len", 64, "--global-batch", 4, "--steps", 2,
         "--val-fraction", 0, "--dropout", 0, "--log-every", 0, "--data", TEXT)
CASES = {
    "1 thread": ("--threads", 1),
    "2 threads": ("--threads", 2),
    "4 threads": ("--threads", 4),
    "4 rank threads": ("--threads", 1, "--strategy", "dp", "--local-ranks", 4),
    "2 ranks of 2 threads with a split vocabulary": ("--threads", 2, "--strategy", "tp", "--tp-vocab", "on"),
}


def outcome(flags):
    """The results of a process: losses and norms as text of every bit, and the model file's checksum."""
    with tempfile.TemporaryDirectory(prefix="dtrain-repeat-") as folder:
        command = launched(2 if "tp" in flags else 1, *MODEL, *flags, "--run-dir", folder)
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            return f"status {result.returncode}: {result.stderr[-500:]}"
        return digest_of(folder)


def minority(outcomes):
    """Each outcome but the most frequent one, with the number of processes that had it."""
    return collections.Counter(outcomes).most_common()[1:]


def main(processes):
    different = 0
    for name, flags in CASES.items():
        outcomes = [outcome(flags) for _ in range(processes)]
        failed = [text for text in outcomes if text.startswith("status")]
        others = minority(outcomes)
        count = sum(number for _, number in others)
        print(f"{name}: {processes} processes, {len(failed)} failed, {count} differ", flush=True)
        for text in [*failed[:1], *(text for text, _ in others)]:
            print("  " + text)
        different += count + len(failed)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
