"""Compares dtrain with transformers on random small models and on SmolLM2-135M-Instruct; see scripts/soak.sh. Runs with a Python
that has what scripts/get_smollm2.py needs; status 77 says that this one lacks a package."""

import argparse
import random
import sys
import time

import get_smollm2


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=24, metavar="N", help="number of random models")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), metavar="S")
    parser.add_argument("--no-smollm2", action="store_true", help="random models only")
    options = parser.parse_args()
    if missing := get_smollm2.missing_packages():
        print(f"huggingface: SKIPPED, {sys.executable} lacks {', '.join(missing)}; scripts/get_smollm2.py says how to install "
              "them, and DTRAIN_PEER_PYTHON names another Python")
        return 77
    return compare(options)


def compare(options):
    """The status."""
    import hugging_face_random
    import hugging_face_smollm2
    import transformers
    from hugging_face_reference import compute_in_own_dtype
    transformers.utils.logging.disable_progress_bar()
    compute_in_own_dtype()
    random.seed(options.seed)
    print(f"huggingface: {options.models} random models, seed {options.seed}", flush=True)
    begin = time.monotonic()
    bad = hugging_face_random.check(options.models)
    print(f"huggingface: {bad} of {options.models} random models differ, {time.monotonic() - begin:.0f} s", flush=True)
    if not options.no_smollm2:
        bad += hugging_face_smollm2.check()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
