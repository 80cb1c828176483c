"""Each kind of fault of scripts/soak_nodes.py once: a job of two nodes goes on, and ends with the bits of an undisturbed
one."""

import contextlib
import pathlib
import random
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import soak_nodes  # noqa: E402
from dtrain_harness import FolderTest  # noqa: E402

WHY_NOT = soak_nodes.two_hosts.why_not()


class Chaos(FolderTest):
    def test_each_kind_of_fault(self):
        seed = random.randrange(2**32)
        random.seed(seed)
        print(f"chaos: seed {seed}", flush=True)
        if WHY_NOT:
            print(f"skipped: {WHY_NOT}", flush=True)
        with contextlib.ExitStack() as stack:
            run = soak_nodes.Run(soak_nodes.Place(self.folder, stack), "run")
            self.assertEqual("", soak_nodes.go_through(run, self.faults(run)))
        self.assertEqual(len(soak_nodes.OF_RANKS), run.restarts())

    def faults(self, run):
        """The last ones of each job end it."""
        has_network = not WHY_NOT
        first = random.sample([*soak_nodes.OF_RANKS, *([soak_nodes.DISK] if has_network else [])], 3 + has_network)
        for kinds in ([*first, soak_nodes.CUT if has_network else "launcher killed"], ["launcher killed"], ["launcher stopped"]):
            run.start(over_network=soak_nodes.CUT in kinds)
            for kind in kinds:
                yield kind, random.choice(("steps", "save"))


if __name__ == "__main__":
    unittest.main()
