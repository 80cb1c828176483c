"""What cmake --install makes runs after it was moved, read-only, for another user, on a machine without checkout, LibTorch and Debian's libraries."""

import os
import pathlib
import re
import shutil
import tempfile
import unittest

from dtrain_harness import BUILD, DTRAIN, GOLDEN, SOURCE, USAGE, make_folder, need_mounts, run
from messages import assert_names

DEVICE = 13
NOBODY = 65534
# What each node must have (docs/guide/install.md), by the names that the loader knows them by; sanitizers where they are built in.
SYSTEM = re.compile(r"(linux-vdso|ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libutil|libgcc_s|libstdc\+\+|lib(a|ub)san)\.so")
# A machine that has neither the checkout nor what it was built with. $1: the installed folder, $2: where it is seen.
ELSEWHERE = r"""
set -e
mount --bind "$1" "$2"
mount -o remount,bind,ro "$2"
for library in /usr/lib/x86_64-linux-gnu/lib{fmt,xxhash,crypto,sentencepiece,sentencepiece_train,icuuc,icudata}.so.*; do
  [ -L "$library" ] || mount --bind /dev/null "$library"
done
mount -t tmpfs none "$BUILD"
mount -t tmpfs none "$SOURCE"
cd "$3"
shift 3
exec setpriv --reuid 65534 --regid 65534 --clear-groups env -i PATH=/usr/bin:/bin TMPDIR="$TMPDIR" "$@"
"""


def setUpModule():
    # The first folder is gone before anything runs.
    global installed
    parent = pathlib.Path(tempfile.mkdtemp(prefix="install-test-", dir=BUILD))
    unittest.addModuleCleanup(shutil.rmtree, parent)
    run("sh", "-c", 'umask 022; exec cmake --install "$0" --prefix "$1"', BUILD, parent / "first")
    installed = (parent / "first").rename(parent / "second")


class InstallTest(unittest.TestCase):
    def setUp(self):
        self.folder = make_folder(self)
        shutil.copy(GOLDEN / "text.bin", self.folder / "text.bin")

    def trained(self, run_dir):
        return ["--strategy", "ddp", "--data", self.folder / "text.bin", "--steps", "2", "--threads", "1",
                "--width", "32", "--run-dir", run_dir]


class Installed(InstallTest):
    def test_others_may_read_all_of_it(self):
        for path in installed.rglob("*"):
            mode = path.stat().st_mode
            self.assertEqual(mode & 0o005 if path.is_dir() else mode & 0o004, 0o005 if path.is_dir() else 0o004, path)
        for name in ("bin/dtrain", "share/dtrain/configs/experiments/mini.json", "share/dtrain/docs/guide/install.md",
                     "share/dtrain/README.md", "share/dtrain/third_party/libfmt9/copyright"):
            self.assertTrue((installed / name).is_file(), name)

    def test_it_takes_the_room_that_the_page_says(self):
        told = int(re.search(r"--prefix /opt/dtrain +# (\d+) MB", (SOURCE / "docs" / "guide" / "install.md").read_text())[1])
        found = sum(path.stat().st_size for path in installed.rglob("*") if path.is_file() and not path.is_symlink()) / 1e6
        self.assertLess(abs(found - told), 0.05 * told, f"{found:.0f} MB")

    def test_no_search_path_leads_out_of_the_folder(self):
        for path in (*(installed / "bin").iterdir(), *(installed / "lib" / "dtrain").glob("*.so*")):
            found = re.search(r"\((?:RUN|R)?PATH\).*\[(.*)\]", run("readelf", "-d", path).stdout)
            for entry in found[1].split(":") if found else []:
                self.assertRegex(entry, r"^\$ORIGIN(/\.\./lib/dtrain|/torch/lib|/nvidia/\w+/lib)?$", path)

    def test_it_runs_from_another_folder_and_through_a_link(self):
        (self.folder / "dtrain").symlink_to(installed / "bin" / "dtrain")
        version = run(self.folder / "dtrain", "--version", cwd=self.folder).stdout
        self.assertEqual(version, run(DTRAIN, "--version").stdout)
        run(self.folder / "dtrain", *self.trained("run")[2:], cwd=self.folder)
        self.assertTrue((self.folder / "run" / "final" / "model.safetensors").is_file())


class OnAnotherMachine(InstallTest):
    def setUp(self):
        need_mounts(self)
        super().setUp()
        self.folder.chmod(0o755)
        self.seen = self.folder / "opt" / "a folder"
        self.seen.mkdir(parents=True)
        self.work = self.folder / "work"
        self.work.mkdir()
        os.chown(self.work, NOBODY, NOBODY)

    def there(self, *command, status=0):
        return run("unshare", "-m", "bash", "-c", ELSEWHERE, "bash", installed, self.seen, self.work, *command, status=status,
                   environment={"BUILD": str(BUILD), "SOURCE": str(SOURCE), "TMPDIR": str(self.work)})

    def test_ranks_train(self):
        result = self.there(self.seen / "bin" / "dtrun", "-n", "2", "--", "dtrain", *self.trained("run"))
        self.assertTrue((self.work / "run" / "final" / "model.safetensors").is_file(), result.stderr)
        self.assertEqual(sorted(path.name for path in self.work.iterdir()), ["run"])
        # The same bits as the build's in the same environment, which may else limit the instructions.
        run("env", "-i", DTRAIN, *self.trained(self.folder / "own")[2:])
        self.assertEqual(*((path / "final" / "model.safetensors").read_bytes() for path in (self.work / "run", self.folder / "own")))

    def test_the_scripts_find_the_programs(self):
        result = self.there("env", "RANKS_PER_NODE=2", self.seen / "share" / "dtrain" / "scripts" / "train_distributed.sh",
                            *self.trained("run"))
        self.assertTrue((self.work / "run" / "final" / "model.safetensors").is_file(), result.stderr)

    def test_nothing_is_loaded_but_the_folder_and_what_every_node_has(self):
        for name in ("bin/dtrain", "bin/dtrun", "lib/dtrain/libdtrain.so"):
            for line in self.there("ldd", self.seen / name).stdout.splitlines():
                path = line.strip().split(" => ")[-1].rsplit(" (", 1)[0]
                inside = pathlib.Path(os.path.normpath(path)).is_relative_to(self.seen)
                self.assertTrue(inside or SYSTEM.match(path.rsplit("/", 1)[-1]), line)

    def test_a_device_that_is_not_there_is_refused_by_name(self):
        flags = ["--device", "cuda", *self.trained("run")[2:]]
        if (installed / "lib" / "dtrain" / "libdtrain_cuda.so").exists():
            result = self.there(self.seen / "bin" / "dtrain", *flags, status=None)
            self.assertIn(result.returncode, (USAGE, DEVICE))
        else:
            result = self.there(self.seen / "bin" / "dtrain", *flags, status=USAGE)
            assert_names(result.stderr, "cuda")
        self.assertEqual(result.stderr.count("error: "), 1, result.stderr)
        self.assertIn("error: ", result.stderr.splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
