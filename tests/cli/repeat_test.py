"""Equal commands compute equal bits: a small part of scripts/soak.sh repeat."""

import concurrent.futures
import os
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(os.environ["DTRAIN_SOURCE_DIR"]) / "scripts"))
import soak_repeat  # noqa: E402


class Repeat(unittest.TestCase):
    def test_processes_on_threads_and_on_rank_threads_have_the_same_bits(self):
        for name, flags in soak_repeat.CASES.items():
            with self.subTest(name):
                with concurrent.futures.ThreadPoolExecutor(2) as pool:  # two at once, as a busy machine has them
                    outcomes = list(pool.map(soak_repeat.outcome, [flags] * 2))
                self.assertFalse(outcomes[0].startswith("status"), outcomes[0])
                self.assertEqual(soak_repeat.minority(outcomes), [])

    def test_one_process_that_differs_is_noticed(self):
        usual, other = (soak_repeat.outcome(("--threads", 1, "--seed", seed)) for seed in (1, 2))
        self.assertEqual(soak_repeat.minority([usual, other, usual]), [(other, 1)])


if __name__ == "__main__":
    unittest.main()
