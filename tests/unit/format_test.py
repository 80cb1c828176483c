"""Every C++ file is formatted by .clang-format."""

import os
import pathlib
import subprocess
import unittest

SOURCE = pathlib.Path(os.environ["DTRAIN_SOURCE_DIR"])


class Format(unittest.TestCase):
    def test_clang_format_changes_nothing(self):
        files = [path for folder in ("apps", "launcher", "lib", "plugins", "tests") for path in sorted((SOURCE / folder).rglob("*"))
                 if path.suffix in (".h", ".cpp")]
        result = subprocess.run(["clang-format", "--dry-run", "-Werror", "--style=file", *files],
                                capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 0, "run clang-format -i on the files named here:\n" + result.stderr)


if __name__ == "__main__":
    unittest.main()
