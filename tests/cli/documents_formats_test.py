"""The commands and programs of the pages about our files do what the pages say, and the files hold what those describe."""

import unittest

import reader_python
from documents_harness import pages_test

Pages = pages_test([
    "docs/formats/model.md",
    "docs/formats/tokens.md",
])


if __name__ == "__main__":
    reader_python.require()
    unittest.main()
