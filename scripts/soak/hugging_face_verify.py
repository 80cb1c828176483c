"""Runs dtrain for scripts/soak/soak_hugging_face.py, and compares what it computes with transformers."""

import json
import subprocess

from hugging_face_reference import NAME, own_errors
from runs import launched

LOGITS_IN_FLOAT64 = 1e-10  # relative; verify's own tolerance is that of float32 files
OWN_ERRORS = 3  # a value may be as far from transformers' as three times the error of transformers' own float32
FAILED_CHECKS = 7  # verify's status


def dtrain(*words, ranks=1, statuses=(0,)):
    """Its standard output; raises RuntimeError with its message for any other status."""
    command = launched(ranks, *words)
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode not in statuses:
        raise RuntimeError(f"{' '.join(command)}: status {result.returncode}: {result.stderr[-1000:]}")
    return result.stdout


def verify(model, reference, dtype, text, ranks=1, layout=()):
    """(what transformers computes otherwise, as a list of texts; name -> error of each value)."""
    output = dtrain("verify", "--huggingface", model, "--expected", reference / f"{dtype}.safetensors", "--trajectory",
                    reference / "meta.json", "--name", NAME, "--text", text, "--dtype", dtype, "--threads", 1, *layout,
                    ranks=ranks, statuses=(0, FAILED_CHECKS))
    checks = json.loads(output)["checks"]
    errors = {check: float(found["error"]) for check, found in checks.items()}  # some are the text "inf"
    tolerances = {check: found["tolerance"] for check, found in checks.items()}
    if dtype == "float64":
        tolerances["logits"] = LOGITS_IN_FLOAT64
    else:
        tolerances |= {check: max(tolerances[check], OWN_ERRORS * error) for check, error in own_errors(reference).items()}
    problems = [f"{dtype} on {ranks} ranks {' '.join(map(str, layout))}: {check}: error {errors[check]:.3g}, tolerance {tolerance:.3g}"
                for check, tolerance in tolerances.items() if not errors[check] <= tolerance]
    return problems, errors
