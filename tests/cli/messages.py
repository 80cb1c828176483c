"""What a test asks of a message: the settings, files, ranks and numbers that one line names; never a sentence.

Whole texts are approved in tests/transcripts.
"""

import re


def holds(line, name):
    """True if `name` (or a compiled pattern) stands in `line` as a whole word: 1 is not in 12, --lr not in --lr-min."""
    if not isinstance(name, re.Pattern):
        name = re.compile(rf"(?<![\w-])(?<!\d\.){re.escape(str(name))}(?![\w-])(?!\.\d)")
    return name.search(line) is not None


def lines_naming(text, *names):
    """The lines of `text` that hold every name."""
    return [line for line in text.splitlines() if all(holds(line, name) for name in names)]


def assert_names(text, *names):
    """One line, at least, holds every name."""
    if not lines_naming(text, *names):
        raise AssertionError(f"no line names {', '.join(map(str, names))}:\n{text}")


def error_line(text, *names):
    """The only line with an error, which holds every name; notes and warnings may stand around it."""
    (line,) = [line for line in text.splitlines() if "error: " in line] or [""]
    assert_names(line or text, *names)
    return line


def assert_error(result, status, *names):
    """The process (as subprocess.run returns it) wrote one line, an error that holds every name, and ended with `status`."""
    if result.returncode != status or result.stdout or not re.fullmatch(r"\w+: error: [^\n]*\n", result.stderr):
        raise AssertionError(f"status {result.returncode}, where one line and {status} are due:\n{result.stdout}{result.stderr}")
    assert_names(result.stderr, *names)
