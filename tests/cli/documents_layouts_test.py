"""The commands of the pages about ranks and layouts work as described."""

import unittest

from documents_harness import pages_test

Pages = pages_test([
    "docs/clusters.md",
    "docs/compression.md",
    "docs/determinism.md",
    "docs/doctor.md",
    "docs/dtrun.md",
    "docs/nodes.md",
    "docs/pipeline.md",
    "docs/planning.md",
    "docs/profile.md",
    "docs/sharding.md",
    "docs/tensor_parallel.md",
    "docs/tour.md",
])


if __name__ == "__main__":
    unittest.main()
