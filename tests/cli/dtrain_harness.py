"""Runs the real dtrain, alone or under dtrun, and reads what it leaves. For dtrun itself there is dtrun_harness.py."""

import atexit
import concurrent.futures
import contextlib
import ctypes
import ctypes.util
import glob
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
import types
import unittest

from messages import assert_error

BUILD = pathlib.Path(os.environ["DTRAIN_BINARY_DIR"])
SOURCE = pathlib.Path(os.environ["DTRAIN_SOURCE_DIR"])
# Flags of runs whose steps must not depend on --steps, since they are compared with longer ones.
CONSTANT_RATE = ("--schedule", "constant", "--warmup-steps", "0")
GOLDEN = SOURCE / "tests" / "golden"
PYTHON = SOURCE / ".deps" / "python" / "bin" / "python"  # has safetensors and PyTorch: scripts/setup.sh --dev makes it
DTRAIN, DTRUN = BUILD / "bin" / "dtrain", BUILD / "bin" / "dtrun"
USAGE, DATA, CHECKPOINT, DIFFERENT = 2, 3, 6, 7
LIMIT = 120  # seconds after which a test has failed; none needs more than a few

# A libdtrain.so that trains nothing: it prints what the front end hands over and ends with STAND_IN_STATUS, or else 42.
STAND_IN = r"""
#include <stdio.h>
#include <stdlib.h>
int dtrain_run(const char* request) {
  puts(request);
  fflush(stdout);
  const char* status = getenv("STAND_IN_STATUS");
  return status ? atoi(status) : 42;
}
"""


def launched(ranks, *arguments, program=DTRAIN):
    """The words of a command that runs dtrain, under dtrun where there are several ranks."""
    launcher = [DTRUN, "-n", ranks, "--"] if ranks > 1 else []
    return [str(word) for word in (*launcher, program, *arguments)]


def overriding(defaults, *flags):
    """The words of `defaults` without the flags that `flags` give too, and those: a repeated flag is reported."""
    given, kept, keeps = {str(word) for word in flags}, [], True
    for word in defaults:
        if str(word).startswith("--"):
            keeps = str(word) not in given
        if keeps:
            kept.append(word)
    return [*kept, *flags]


def run(*command, status=0, environment=None, **options):
    """The finished process, which ended with `status` (any, if None)."""
    result = subprocess.run([str(word) for word in command], **{
        "capture_output": True, "text": True, "errors": "replace", "timeout": LIMIT, "check": False,
        "env": {**os.environ, **(environment or {})}, **options})
    if status not in (None, result.returncode):
        raise AssertionError(f"{command}: status {result.returncode} instead of {status}\n{result.stderr}")
    return result


def paths_of(folder, pattern):
    """The paths below `folder` that match, while programs make and remove folders: pathlib's glob raises then."""
    return [folder / name for name in glob.glob(pattern, root_dir=folder)]


def wait_until(condition, what, limit=60):
    """The first true value of `condition()`, which comes within `limit` seconds."""
    end = time.monotonic() + limit
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError("waited in vain for " + what)
        time.sleep(0.005)
    return value


def free_port():
    """A loopback port that no other test takes while this process runs, below those that the system assigns."""
    while True:
        port, claim = random.randrange(10000, 20000), socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0dtrain-test-port-{port}")
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        atexit.register(claim.close)
        return port


def need_mounts(case):
    """Skips the test if mount namespaces are unavailable, as in a chroot whose / is not a mount."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode != 0:
        case.skipTest("needs namespaces: of mounts")


def mount_tmpfs(case, folder, options):
    """Mounts a file system of its own at a folder, until the test's end; skips the test where that is not allowed."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, text=True, check=False)
    if mount.returncode != 0:
        case.skipTest("needs root: to mount a small file system: " + mount.stderr.strip())
    case.addCleanup(subprocess.run, ["umount", "-l", folder], check=True)


def as_nobody(*words):
    """The words of a command, run as user 65534 if we are root.

    That user may not be able to look into the folder of this checkout, and sees it at /mnt.
    """
    words = [str(word) for word in words]
    if os.geteuid() != 0:
        return words
    script = f"mount --bind '{SOURCE}' /mnt && exec setpriv --reuid 65534 --regid 65534 --clear-groups \"$@\""
    return ["unshare", "--mount", "sh", "-c", script, "sh", *(word.replace(f"{SOURCE}/", "/mnt/") for word in words)]


def xxh3(content):
    function = ctypes.CDLL(ctypes.util.find_library("xxhash")).XXH3_64bits
    function.argtypes, function.restype = [ctypes.c_char_p, ctypes.c_size_t], ctypes.c_uint64
    return function(content, len(content))


def metrics_of(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def final_model(run_dir):
    return run_dir / "final" / "model.safetensors"


def terminal_output(master):
    """All that is written to a terminal until its last writer is gone; closes `master`."""
    output = b""
    try:
        while piece := os.read(master, 65536):
            output += piece
    except OSError:  # the terminal's end
        pass
    os.close(master)
    return output


def screen_lines(output):
    """The lines that stay, by a terminal's rules for \\r, \\n and what erases to the right or (on a last line) downwards."""
    lines, column = [""], 0
    for part in re.findall(r"\x1b\[[KJ]|\r|\n|[^\x1b\r\n]+", output):
        if part in ("\x1b[K", "\x1b[J"):
            lines[-1] = lines[-1][:column]
        elif part == "\r":
            column = 0
        elif part == "\n":
            lines.append("")
            column = 0
        else:
            lines[-1] = lines[-1][:column] + part + lines[-1][column + len(part):]
            column += len(part)
    return lines


def front_end_alone(folder):
    """A copy of dtrain in `folder` whose libdtrain.so is STAND_IN: all that happens before LibTorch, without its start."""
    for name in ("bin", "lib"):
        (folder / name).mkdir()
    (folder / "stand_in.c").write_text(STAND_IN)
    run("cc", "-shared", "-fPIC", "-o", folder / "lib" / "libdtrain.so", folder / "stand_in.c")
    return pathlib.Path(shutil.copy(DTRAIN, folder / "bin" / "dtrain"))


def make_folder(owner):
    """A folder that goes with all it holds after a test (an instance), a class's last one, or a file's (unittest)."""
    folder = tempfile.TemporaryDirectory(prefix="dtrain-test-")
    add = {type: "addClassCleanup", types.ModuleType: "addModuleCleanup"}.get(type(owner), "addCleanup")
    getattr(owner, add)(folder.cleanup)
    return pathlib.Path(folder.name)


class FolderTest(unittest.TestCase):
    """Each test has a folder of its own."""

    def setUp(self):
        self.folder = make_folder(self)

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def refused(self, words, *names, status=USAGE, without=(), environment=None):
        """dtrain, run in the folder, ends with one line, an error that holds the names. `words`: a command line, or its words."""
        words = shlex.split(words) if isinstance(words, str) else words
        result = run(DTRAIN, *words, cwd=self.folder, status=None, environment=environment)
        assert_error(result, status, *names)
        for part in without:
            self.assertNotIn(part, result.stderr)


class SideBySide:
    """A TestCase whose methods check_* wait more than they compute: they run at the same time, each on an instance of its own."""

    def test_side_by_side(self):
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            checks = {name: pool.submit(self.run_alone, name) for name in dir(self) if name.startswith("check_")}
        for name, check in checks.items():
            with self.subTest(name):
                check.result()

    def run_alone(self, name):
        case = type(self)(name)
        with contextlib.ExitStack() as cleanups:  # doCleanups swallows their errors outside of a test's run
            case.addCleanup = cleanups.callback
            case.setUp()
            getattr(case, name)()
