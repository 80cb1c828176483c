"""Every defect that scripts/soak/soak_mutations.py plants has its place in the sources, and one only."""

import os
import pathlib
import sys
import unittest

SOURCE = pathlib.Path(os.environ["DTRAIN_SOURCE_DIR"])
sys.path.insert(0, str(SOURCE / "scripts/soak"))
from soak_mutations import MUTATIONS  # noqa: E402


class Mutations(unittest.TestCase):
    def test_each_changes_one_place(self):
        for mutation in MUTATIONS:
            text = (SOURCE / "lib" / "dtrain" / mutation.file).read_text()
            self.assertEqual(text.count(mutation.before), 1, f"{mutation.name}: {mutation.file}: '{mutation.before}'")
            self.assertNotEqual(mutation.before, mutation.after)
            self.assertEqual(bool(mutation.through), mutation.file.endswith(".h"), mutation.name)


if __name__ == "__main__":
    unittest.main()
