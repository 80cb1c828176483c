"""The commands of the pages about ranks and layouts work as described."""

import unittest

from documents_harness import pages_test

Pages = pages_test([
    "docs/guide/clusters.md",
    "docs/guide/compression.md",
    "docs/guide/determinism.md",
    "docs/guide/doctor.md",
    "docs/guide/dtrun.md",
    "docs/guide/nodes.md",
    "docs/guide/pipeline.md",
    "docs/guide/planning.md",
    "docs/guide/profile.md",
    "docs/guide/sharding.md",
    "docs/internals/tensor_parallel.md",
    "docs/internals/tour.md",
])


if __name__ == "__main__":
    unittest.main()
