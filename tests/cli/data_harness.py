"""Writes inputs of dtrain, prepares them, and reads the token file that they become or the line that refuses them."""

from dtrain_harness import DATA, DTRAIN, FolderTest, run
from token_file import read_token_file


class DataTest(FolderTest):
    """Relative paths are of the test's folder."""

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def dtrain(self, *arguments, status=0):
        return run(DTRAIN, *arguments, cwd=self.folder, status=status)

    def prepare(self, *arguments):
        self.dtrain("data", "prepare", *arguments, "--output", "out.dtok", "--overwrite")
        return read_token_file(self.folder / "out.dtok")

    def refused(self, *arguments, parts=(), status=DATA):
        """One line, which holds the parts, and nothing new in the folder."""
        before = sorted(self.folder.rglob("*"))
        result = self.dtrain(*arguments, status=status)
        self.assertRegex(result.stderr, r"\Adtrain: error: [^\n]*\n\Z")
        for part in parts:
            self.assertIn(str(part), result.stderr)
        self.assertEqual(sorted(self.folder.rglob("*")), before)

    def one_error(self, result, *parts):
        """Among notes and warnings of a run."""
        (line,) = [line for line in result.stderr.splitlines() if "error:" in line]
        for part in parts:
            self.assertIn(str(part), line)
