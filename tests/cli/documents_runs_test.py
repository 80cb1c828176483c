"""The commands of the pages about data, runs and their output work as described."""

import unittest

from documents_harness import pages_test

Pages = pages_test([
    "docs/checkpoints.md",
    "docs/configuration.md",
    "docs/data.md",
    "docs/evaluation.md",
    "docs/generation.md",
    "docs/habits.md",
    "docs/memory.md",
    "docs/views.md",
])


if __name__ == "__main__":
    unittest.main()
