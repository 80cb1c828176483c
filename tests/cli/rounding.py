"""Bounds of rounding errors, derived from a format's precision, the number of roundings and float64 runs, never from one CPU's
results. tests/support/oracles/rounding.h is the counterpart for C++."""

import array
import math
import random

from safetensors_file import read_model, write_model

UNIT_ROUNDOFF = {"float64": 2**-53, "float32": 2**-24, "float16": 2**-11, "bfloat16": 2**-8}
DRAWS = 2
ENLARGED = 2**20  # a disturbance of float64, above float64's own rounding


def rounding_bound(dtype, count):
    """The largest relative error after `count` roundings, or of a sum of `count` terms relative to the sum of their magnitudes."""
    total = count * UNIT_ROUNDOFF[dtype]
    return total / (1 - total)


def independent_rounding_bound(dtype, count):
    """Likewise for independent roundings, whose error grows with the square root of their number."""
    return math.sqrt(count) * UNIT_ROUNDOFF[dtype]


def roundings(levels, steps, tokens, dtype):
    """The number of successive roundings of `steps` steps, as in tests/support/oracles/sensitivity.cpp. tokens: per step."""
    results = steps * 2 * (13 * levels + 4)
    return results if dtype in ("float16", "bfloat16") else results * tokens


def disturb(model, path, relative, seed):
    """Writes a copy of a float64 model file with each weight perturbed by the fraction `relative`, up or down at random."""
    draw = random.Random(seed)
    tensors, metadata = read_model(model)
    for name, (dtype, shape, data) in tensors.items():
        if dtype == "F64":
            values = (value * (1 + draw.choice((-relative, relative))) for value in array.array("d", data))
            tensors[name] = (dtype, shape, array.array("d", values).tobytes())
    write_model(path, tensors, metadata)
    return path


def largest_error(found, expected):
    """The largest difference over the largest expected number."""
    return max(abs(a - b) for a, b in zip(found, expected, strict=True)) / max(map(abs, expected))


def condition_bound(dtype, count, results_of, initial, folder):
    """Bounds the largest_error of each result of a run in `dtype` by the largest one of runs in float64 that begin with weights
    disturbed by as much as `count` roundings of `dtype` sum up to. results_of(model): what such a run from a model file gives,
    lists of numbers by name. initial: the file of its initial weights."""
    enlarged = ENLARGED if dtype == "float64" else 1
    relative = independent_rounding_bound(dtype, count) * enlarged
    exact = results_of(initial)
    largest = 0
    for seed in range(DRAWS):
        found = results_of(disturb(initial, folder / f"disturbed-{seed}.safetensors", relative, seed))
        largest = max(largest, *(largest_error(found[name], values) for name, values in exact.items()))
    return largest / enlarged
