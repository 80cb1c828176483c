"""Writes inputs of dtrain, prepares them, and reads the token file that they become or the line that refuses them."""

from dtrain_harness import DATA, DTRAIN, FolderTest, run
from messages import assert_error, error_line
from token_file import read_token_file


class DataTest(FolderTest):
    """Relative paths are of the test's folder."""

    def dtrain(self, *arguments, status=0):
        return run(DTRAIN, *arguments, cwd=self.folder, status=status)

    def prepare(self, *arguments):
        self.dtrain("data", "prepare", *arguments, "--output", "out.dtok", "--overwrite")
        return read_token_file(self.folder / "out.dtok")

    def refused(self, *arguments, parts=(), status=DATA):
        """One line, which holds the parts, and nothing new in the folder."""
        before = sorted(self.folder.rglob("*"))
        assert_error(self.dtrain(*arguments, status=None), status, *parts)
        self.assertEqual(sorted(self.folder.rglob("*")), before)

    def one_error(self, result, *names):
        """Among notes and warnings of a run."""
        error_line(result.stderr, *names)
