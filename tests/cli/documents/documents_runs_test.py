"""The commands of the pages about data, runs and their output work as described."""

import unittest

from documents_harness import pages_test

Pages = pages_test([
    "docs/guide/checkpoints.md",
    "docs/guide/configuration.md",
    "docs/guide/data.md",
    "docs/guide/evaluation.md",
    "docs/guide/generation.md",
    "docs/guide/families.md",
    "docs/guide/habits.md",
    "docs/guide/hugging_face.md",
    "docs/guide/memory.md",
    "docs/guide/views.md",
])


if __name__ == "__main__":
    unittest.main()
