"""test_summary.py RESULTS.xml: summarises ctest's JUnit file.

Status 0 if tests ran, none failed, and each skip has a reason that tests/allowed_skips.txt allows here.
"""

import collections
import os
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree


def label_of(case):
    return case.get("name").partition(".")[0]  # tests/CMakeLists.txt names tests LABEL.NAME


def output_of(case):
    return case.findtext("system-out") or ""


def reasons_of_skips(case, is_skipped):
    """Reasons of a skipped file or of skipped tests inside it: "skipped: REASON" of a file or of Catch2, which has no skips, and
    "skipped 'REASON'" of Python's unittest, which also counts them."""
    output = output_of(case)
    reasons = [reason.strip("'\"") for reason in re.findall(r"^(?:.*\.\.\. | *)skipped:? +(.*)", output, re.MULTILINE)]
    counted = sum(int(number) for number in re.findall(r"\(.*skipped=(\d+).*\)", output))
    missing = max(counted, int(is_skipped)) - len(reasons)
    return reasons + ["it gave no reason"] * missing


def allowed_reasons(in_ci):
    """Prefixes of the reasons that tests/allowed_skips.txt allows."""
    lines = (pathlib.Path(__file__).parent.parent / "tests" / "allowed_skips.txt").read_text().splitlines()
    rows = [(line[:3].strip(), re.split(" {2,}", line[3:])[0]) for line in lines if line and line[0] != "#"]
    return tuple(reason for where, reason in rows if where == "CI" or not in_ci)


def tests_inside(case):
    """How many tests a file of Catch2 or unittest says that it has run; 1 if it does not say."""
    said = re.findall(r"(?:in|^test cases:) +(\d+)(?: test cases?\)| \|)|^Ran (\d+) tests?\b", output_of(case), re.MULTILINE)
    return sum(int(a or b) for a, b in said) or 1


def main(path):
    try:
        cases = list(ElementTree.parse(path).iter("testcase"))
    except (OSError, ElementTree.ParseError) as error:
        print(f"no results of ctest: {error}")
        return 1
    count, seconds, failed = collections.Counter(), collections.Counter(), []
    in_ci = os.environ.get("CI") == "true"
    inside, allowed, forbidden = 0, allowed_reasons(in_ci), False
    for case in cases:
        outcome = {"run": "passed", "notrun": "skipped"}.get(case.get("status"), "failed")
        # CTest also reports a test that could not be started as not run; only a skip says that it is one.
        if outcome == "skipped" and "SKIP" not in (case.find("skipped").get("message") or ""):
            outcome = "failed"
        count[outcome] += 1
        seconds[label_of(case)] += float(case.get("time"))
        if outcome == "failed":
            failed.append(case.get("name"))
        inside += 0 if outcome == "skipped" else tests_inside(case)
        for reason, number in collections.Counter(reasons_of_skips(case, outcome == "skipped")).items():
            forbidden = forbidden or not reason.startswith(allowed)
            times = f" ({number} times)" if number > 1 else ""
            print(f"SKIPPED {'' if outcome == 'skipped' else 'in '}{case.get('name')}: {reason}{times}")
    print("seconds per label (several run at once): " +
          ", ".join(f"{label} {total:.0f}" for label, total in sorted(seconds.items())))
    print(f"tests in these files: {inside}")
    for name in failed:
        print(f"FAILED {name}")
    if forbidden:
        print(f"FAILED: a test was skipped for a reason that tests/allowed_skips.txt does not allow{' with CI=true' if in_ci else ''}")
    print(f"{count['passed']} passed, {count['failed']} failed" +
          (f", {count['skipped']} skipped" if count["skipped"] else ""))
    return 0 if count["passed"] and not failed and not forbidden else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
