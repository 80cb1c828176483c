"""--profile: the trace of all ranks, its table, and unchanged results. Expected figures come from metrics.jsonl and from arithmetic."""

import collections
import json
import re
import unittest

from dtrain_harness import CONSTANT_RATE, FolderTest, GOLDEN, USAGE, final_model, launched, metrics_of, run
from messages import assert_names

SMALL = [*CONSTANT_RATE, "--layers", "2", "--width", "16", "--heads", "2", "--neurons", "16", "--seq-len", "16", "--threads", "1", "--log-every", "0",
         "--microbatch", "2", "--data", GOLDEN / "text.bin", "--val-fraction", "0.1", "--eval-sequences", "4"]
# name: processes, flags
LAYOUTS = {"single": (1, ["--strategy", "single", "--grad-accum", "2"]),
           "ddp": (2, ["--strategy", "ddp", "--grad-accum", "2"]),
           "fsdp": (2, ["--strategy", "fsdp"]),
           "zero": (2, ["--strategy", "zero", "--zero-stage", "1"]),
           "tp": (2, ["--strategy", "tp"]),
           "pp": (2, ["--strategy", "pp", "--grad-accum", "2"]),
           "3d": (4, ["--strategy", "3d", "--pp", "2", "--dp", "2", "--tp", "1", "--grad-accum", "2"]),
           "dp": (1, ["--strategy", "dp", "--local-ranks", "2"]),
           "mp": (1, ["--strategy", "mp", "--local-ranks", "2", "--grad-accum", "2"])}
RANKS = {"dp": 2, "mp": 2}  # that are threads
NUM_BLOCKS = 4  # embedding, two levels, head
FIRST, STEPS = 3, 4  # profiled of 8
SLACK = 0.0021  # microseconds: times stand with three digits


class Trace:
    def __init__(self, run_dir):
        events = json.loads((run_dir / "profile" / "trace.json").read_text())["traceEvents"]
        self.spans = [event for event in events if event["ph"] == "X"]
        self.counters = [event for event in events if event["name"] == "group_counters"]
        self.processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        self.threads = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}

    def named(self, *names, rank=None):
        """The spans whose full name matches one of `names`."""
        return [span for span in self.spans if re.fullmatch("|".join(names), span["name"]) and rank in (None, span["pid"])]

    def calls(self, rank):
        return [span for span in self.spans if span["cat"] == "call" and span["pid"] == rank]


def end_of(span):
    return span["ts"] + span["dur"]


def within(inner, outer):
    return outer["ts"] - SLACK <= inner["ts"] and end_of(inner) <= end_of(outer) + SLACK


class Profile(FolderTest):
    def train(self, name, *flags, ranks=1, **options):
        run_dir = self.folder / name
        result = run(*launched(ranks, *SMALL, "--steps", "8", "--run-dir", run_dir, *flags), **options)
        return run_dir, result.stdout + result.stderr

    def check_nesting(self, trace):
        self.assertEqual(min(span["ts"] for span in trace.spans), 0)
        threads = collections.defaultdict(list)
        for span in trace.spans:
            if trace.threads[span["pid"], span["tid"]] != "checkpoints":
                threads[span["pid"], span["tid"]].append(span)
        for place, spans in threads.items():
            open_spans = []
            for span in sorted(spans, key=lambda each: (each["ts"], -each["dur"])):
                while open_spans and end_of(open_spans[-1]) <= span["ts"] + SLACK:
                    open_spans.pop()
                if open_spans:
                    self.assertTrue(within(span, open_spans[-1]), f"{place}: {span} crosses {open_spans[-1]}")
                open_spans.append(span)

    def check_actions(self, trace, name, num_ranks):
        steps = list(range(FIRST, FIRST + STEPS))
        for rank in range(num_ranks):
            self.assertEqual([span["args"]["step"] for span in trace.named("step", rank=rank)], steps)
            for part in ("read data", "norm .* clipping", "update", "finish gradients"):
                self.assertEqual(len(trace.named(part, rank=rank)), STEPS, part)
        # Each block runs once for each microbatch on every rank that holds it, or a part of it.
        accumulated = 2 if "--grad-accum" in LAYOUTS[name][1] else 1
        holders = {"pp": 1, "mp": 1, "3d": 2}.get(name, num_ranks)
        for kind in ("forward", "backward"):
            runs = [span for span in trace.named(kind) if any(within(span, step) for step in trace.named("step", rank=span["pid"]))]
            self.assertEqual(len(runs), NUM_BLOCKS * STEPS * accumulated * holders, kind)
        if name in ("pp", "mp", "3d"):
            sends = [span for span in trace.spans if span["name"] == "send" and "sends" in trace.threads[span["pid"], span["tid"]]]
            # An activation and a gradient of each microbatch between the two stages.
            self.assertEqual(len(sends), 2 * STEPS * accumulated * holders)
            self.assertEqual({span["args"]["bytes"] for span in sends}, {2 * 16 * 16 * 4})
        if name == "fsdp":
            gathers = trace.named("gather unit")
            self.assertTrue(gathers)
            self.assertTrue(trace.named("release unit") and trace.named("reduce unit"))
            self.assertTrue(all("unit" in span["args"] for span in gathers))

    def check_calls(self, trace, run_dir, num_ranks):
        for rank in range(num_ranks):
            found = collections.Counter()
            for call in trace.calls(rank):
                self.assertGreaterEqual(call["args"]["queued_us"], 0)
                found[call["args"]["group"], "calls"] += 1
                found[call["args"]["group"], "bytes"] += call["args"]["bytes_sent"]
            for event in (each for each in trace.counters if each["pid"] == rank):
                group = event["args"]["group"]
                self.assertEqual(found[group, "bytes"], event["args"]["bytes_sent"], group)
                # A call may begin before the profile or end after it: gathers under the next step.
                self.assertAlmostEqual(found[group, "calls"], event["args"]["calls"], delta=8, msg=group)
        if num_ranks > 1:
            lines = [line for line in metrics_of(run_dir) if "event" not in line]
            sent = sum(line["comm_bytes"] for line in lines if FIRST <= line["step"] < FIRST + STEPS)
            traced = sum(call["args"]["bytes_sent"] for call in trace.calls(0))
            # With ddp no call begins before its step.
            self.assertAlmostEqual(traced, sent, delta=0 if run_dir.name == "ddp" else sent / STEPS)
            self.assertGreater(traced, 0)

    def check_one_clock(self, trace, num_ranks):
        """Every step overlaps the same step of every other rank: ranks wait for each other."""
        for step in range(FIRST, FIRST + STEPS):
            spans = [span for span in trace.named("step") if span["args"]["step"] == step]
            self.assertEqual(len(spans), num_ranks)
            self.assertLess(max(span["ts"] for span in spans), min(end_of(span) for span in spans))

    def check_table(self, output, trace):
        table = output.replace("[0] ", "").partition("profile of ")[2].partition("trace: ")[0]
        rows = dict(re.findall(r"^  (\w[\w ]*?)  +([\d.]+) ", table, re.MULTILINE))
        rows = {name: float(value) for name, value in rows.items()}
        whole = rows.pop("whole step")
        steps = trace.named("step")
        self.assertAlmostEqual(whole, sum(span["dur"] for span in steps) / len(steps) / 1e3, places=2)
        self.assertAlmostEqual(sum(rows.values()), whole, delta=0.001 * len(rows))
        self.assertGreater(rows["forward"], 0)
        self.assertGreater(rows["backward"], 0)

    def test_every_layout_has_all_its_actions_and_calls_on_one_clock(self):
        for name, (processes, flags) in LAYOUTS.items():
            with self.subTest(name):
                run_dir, output = self.train(name, *flags, "--profile", STEPS, ranks=processes)
                num_ranks = RANKS.get(name, processes)
                trace = Trace(run_dir)
                self.assertEqual(sorted(trace.processes), list(range(num_ranks)))
                self.check_nesting(trace)
                self.check_actions(trace, name, num_ranks)
                self.check_calls(trace, run_dir, num_ranks)
                self.check_one_clock(trace, num_ranks)
                self.check_table(output, trace)
                self.assertIn(f"trace: {run_dir}/profile/trace.json", output)

    def test_profiling_changes_no_bit(self):
        plain, _ = self.train("plain", "--strategy", "fsdp", ranks=2)
        profiled, _ = self.train("profiled", "--strategy", "fsdp", "--profile", STEPS, ranks=2)
        self.assertEqual(final_model(plain).read_bytes(), final_model(profiled).read_bytes())
        self.assertFalse((plain / "profile").exists())

    def test_evaluations_and_checkpoints_are_listed_beside_the_steps(self):
        run_dir, output = self.train("run", "--profile", STEPS, "--eval-every", "2", "--checkpoint-every", "2")
        trace = Trace(run_dir)
        self.assertEqual(len(trace.named("evaluation")), 2)  # after steps 4 and 6
        for span in trace.named("evaluation", "checkpoint"):
            self.assertFalse(any(within(span, step) for step in trace.named("step")))
        self.assertIn(4, [span["args"]["step"] for span in trace.named("write .* commit")])
        assert_names(output, "evaluation")
        self.check_nesting(trace)

    def test_a_run_that_ends_early_profiles_its_steps(self):
        run_dir, output = self.train("run", "--profile", "100")
        self.assertEqual([span["args"]["step"] for span in Trace(run_dir).named("step")], [3, 4, 5, 6, 7, 8])
        self.assertIn("profile of 6 steps", output)

    def test_a_launch_that_is_too_short_warns_at_its_start(self):
        for steps, traced in ((2, 0), (6, 4), (7, 5)):
            run_dir, output = self.train(f"run-{steps}", "--profile", "5", "--steps", str(steps))
            warnings = [line for line in output.splitlines() if "--profile 5 traces" in line]
            self.assertEqual(len(warnings), int(traced < 5), output)
            self.assertEqual(f"traces only {traced} steps" in output and "--steps 7" in output, traced < 5, output)
            self.assertEqual((run_dir / "profile" / "trace.json").exists(), traced > 0)

    def test_a_resumed_launch_counts_its_own_steps(self):
        self.train("run", "--steps", "4", "--checkpoint-every", "4")
        run_dir, _ = self.train("run", "--steps", "8", "--resume", "auto", "--profile", "1")
        self.assertEqual([span["args"]["step"] for span in Trace(run_dir).named("step")], [7])
        self.train("run", "--overwrite")
        self.assertFalse((run_dir / "profile" / "trace.json").exists())

    def test_refused_values(self):
        for value, reason in (("-1", "0 to 1000"), ("1001", "0 to 1000"), ("3-5", "--profile"), ("1.5", "--profile")):
            with self.subTest(value):
                _, output = self.train("run", f"--profile={value}", status=USAGE)
                self.assertIn(reason, output)

    def test_a_file_in_place_of_its_folder_is_refused_at_the_start(self):
        (self.folder / "run").mkdir()
        (self.folder / "run" / "profile").write_text("mine")
        _, output = self.train("run", "--profile", "1", status=None)
        self.assertIn(f"{self.folder}/run/profile", output)
        self.assertNotIn("step 1", output)
        self.assertEqual((self.folder / "run" / "profile").read_text(), "mine")


if __name__ == "__main__":
    unittest.main()
