"""test_summary.py RESULTS.xml: what ctest's JUnit file says, in a few lines; status 0 if tests ran and none failed.

With CI=true in the environment, where everything that tests need is installed, a skip is a failure too.
"""

import collections
import os
import re
import sys
import xml.etree.ElementTree as ElementTree


def label_of(case):
    return case.get("name").partition(".")[0]  # tests/CMakeLists.txt names tests LABEL.NAME


def output_of(case):
    return case.findtext("system-out") or ""


def reason_of_skip(case):
    lines = [line.strip() for line in output_of(case).splitlines() if line.strip()]
    told = [line for line in lines if line.lower().startswith("skip")]
    return re.sub(r"(?i)^skip(ped)?:? *", "", (told or lines or ["it gave no reason"])[-1])


def skips_inside(case):
    """Python's unittest passes a file of which it has skipped some tests, and so does Catch2, which has no skips: there
    a test warns "skipped: REASON" and returns."""
    of_unittest = sum(int(number) for number in re.findall(r"\(.*skipped=(\d+).*\)", output_of(case)))
    return of_unittest + len(re.findall(r"^ *skipped: ", output_of(case), re.MULTILINE))


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
    inside = skips = 0
    for case in cases:
        outcome = {"run": "passed", "notrun": "skipped"}.get(case.get("status"), "failed")
        # CTest also reports a test that could not be started as not run; only a skip says that it is one.
        if outcome == "skipped" and "SKIP" not in (case.find("skipped").get("message") or ""):
            outcome = "failed"
        count[outcome] += 1
        seconds[label_of(case)] += float(case.get("time"))
        if outcome == "failed":
            failed.append(case.get("name"))
        if outcome == "skipped":
            skips += 1
            print(f"SKIPPED {case.get('name')}: {reason_of_skip(case)}")
            continue
        inside += tests_inside(case)
        if skips_inside(case):
            skips += 1
            print(f"SKIPPED {skips_inside(case)} inside {case.get('name')}: {reason_of_skip(case)}")
    print("seconds per label (several run at once): " +
          ", ".join(f"{label} {total:.0f}" for label, total in sorted(seconds.items())))
    print(f"tests in these files: {inside}")
    for name in failed:
        print(f"FAILED {name}")
    is_complete = not skips or os.environ.get("CI") != "true"
    if not is_complete:
        print("FAILED: a test was skipped, and CI=true says that none may be")
    print(f"{count['passed']} passed, {count['failed']} failed" +
          (f", {count['skipped']} skipped" if count["skipped"] else ""))
    return 0 if count["passed"] and not failed and is_complete else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
