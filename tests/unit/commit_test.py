"""The commit that the programs name: looked up in the source's own repository, and written only when it changes."""

import os
import pathlib
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ["DTRAIN_SOURCE_DIR"])


class Commit(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="dtrain-commit-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()
        self.header = self.folder / "commit.h"

    def git(self, *arguments, cwd):
        return subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e", *arguments], cwd=cwd, check=True,
                              capture_output=True, text=True, env={**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"}).stdout

    def commit_of(self, source):
        subprocess.run(["cmake", f"-DSOURCE={source}", f"-DHEADER={self.header}", "-P", SOURCE / "cmake/Commit.cmake"],
                       check=True, capture_output=True)
        return self.header.read_text().split('"')[1]

    def test_a_repository_a_change_and_a_tarball(self):
        tree = self.folder / "tree"
        tree.mkdir()
        self.assertEqual(self.commit_of(tree), "unknown")
        self.git("init", "-q", cwd=tree)
        self.assertEqual(self.commit_of(tree), "unknown")  # no commit yet
        (tree / "file").write_text("one")
        self.git("add", "file", cwd=tree)
        self.git("commit", "-qm", "one", cwd=tree)
        commit = self.git("rev-parse", "HEAD", cwd=tree)[:12]
        self.assertEqual(self.commit_of(tree), commit)
        written = self.header.stat().st_mtime_ns
        self.assertEqual(self.commit_of(tree), commit)
        self.assertEqual(self.header.stat().st_mtime_ns, written)
        (tree / "file").write_text("two")
        self.assertEqual(self.commit_of(tree), commit + "-modified")
        unpacked = tree / "unpacked"  # a tarball of dtrain inside somebody else's repository
        unpacked.mkdir()
        self.assertEqual(self.commit_of(unpacked), "unknown")


if __name__ == "__main__":
    unittest.main()
