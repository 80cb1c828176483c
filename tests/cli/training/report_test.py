"""dtrain report: its figures are those of metrics.jsonl, its page is self-contained, and text of runs is never executed."""

import csv
import fcntl
import html
import io
import json
import math
import os
import re
import socket
import subprocess
import time
import unittest

from dtrain_harness import DATA, DTRAIN, GOLDEN, USAGE, FolderTest, as_nobody, launched, make_folder, metrics_of, run
from messages import assert_names

DATA_OF_PAGE = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)
HOSTILE = "</script><img src=x onerror=\"document.title='broken in'\"><b>&amp;</b>'\" \u2028"
STEP_KEYS = ("loss", "grad_norm", "learning_rate", "tokens_per_second", "step_seconds", "wait_seconds", "memory_bytes", "comm_bytes")
CURVES = len(STEP_KEYS)


def step_line(step, **figures):
    return {"step": step, **dict.fromkeys(STEP_KEYS, 1.0), "tokens": 512 * step, "samples": 8 * step, "mfu": None,
            "loss": 5 / (1 + 0.01 * step) + 0.1 * math.sin(step), **figures}


def start_line(**provenance):
    return {"event": "start", "parameters": 1234, "world_size": 2, "mesh": {"pp": 1, "dp": 2, "tp": 1}, "backend": "shm",
            "bitwise_class": "threads=1", "memory_predicted_bytes": {"parameters": 1, "work": 2},
            "provenance": {"host": "here", "command_line": ["dtrain", "--prompt", "it's"], "started": "then", **provenance}}


def write_run(folder, lines, config=None):
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "config.json").write_text(json.dumps(config or {"train": {"lr": 1e-3, "steps": len(lines)}}))
    return folder


def curves_of(lines):
    """Key -> steps and values, read from the file according to docs/formats/metrics.md."""
    curves = {}
    for line in lines:
        if "event" not in line:
            for key in line.keys() - {"step"}:
                if line[key] is not None:
                    curves.setdefault(key, {"steps": [], "values": []})
                    curves[key]["steps"].append(line["step"])
                    curves[key]["values"].append(line[key])
        elif line["event"] == "eval":
            for key in line.keys() - {"event", "step", "tokens", "data"}:
                curve = curves.setdefault(key, {"steps": [], "values": []})
                curve["steps"].append(line["step"])
                curve["values"].append(line[key])
    return curves


def page_data(page):
    (text,) = DATA_OF_PAGE.findall(page)
    return json.loads(text)


class Page(FolderTest):
    def report(self, *arguments, **options):
        return run(DTRAIN, "report", *arguments, cwd=self.folder, **options)

    def page_of(self, *folders):
        return self.report(*folders, "--output", "-").stdout

    @classmethod
    def setUpClass(cls):
        cls.real = make_folder(cls) / "real"
        train = ["--layers", "1", "--width", "16", "--heads", "2", "--neurons", "16", "--seq-len", "16", "--threads", "1",
                 "--data", GOLDEN / "text.bin", "--val-fraction", "0.1", "--eval-every", "2", "--checkpoint-every", "3",
                 "--strategy", "ddp", "--run-dir", cls.real]
        run(*launched(2, *train, "--steps", "5"))
        run(*launched(2, *train, "--steps", "8", "--resume", "auto"))

    def test_figures_of_a_real_run_are_those_of_metrics_jsonl(self):
        (found,) = page_data(self.page_of(self.real))["runs"]
        curves, expected = found["curves"], curves_of(metrics_of(self.real))
        times = curves.pop("seconds")
        self.assertEqual(curves, expected)
        self.assertAlmostEqual(times["values"][-1], sum(expected["step_seconds"]["values"]))
        self.assertEqual(found["state"], "finished")
        self.assertEqual([each["step"] for each in found["checkpoints"]],
                         [line["step"] for line in metrics_of(self.real) if line.get("event") == "checkpoint"])
        self.assertEqual(len(found["starts"]), 2)
        self.assertEqual(found["settings"]["layout.strategy"], "ddp")
        self.assertIn("--resume auto", found["command"])

    def test_the_table_has_every_figure_of_every_step(self):
        rows = list(csv.DictReader(io.StringIO(self.report(self.real, "--csv", "-").stdout)))
        expected = curves_of(metrics_of(self.real))
        for key, curve in expected.items():
            found = {int(row["step"]): float(row[key]) for row in rows if row[key]}
            self.assertEqual(found, dict(zip(curve["steps"], curve["values"], strict=True)), key)
        self.assertEqual({row["run"] for row in rows}, {"real"})

    def test_curves_of_many_runs_share_their_points(self):
        spike = [step_line(step, loss=50.0 if step == 777 else 1.0 + step) for step in range(1, 2001)]
        runs = [write_run(self.folder / "runs" / str(number), spike) for number in range(40)]
        found = page_data(self.page_of("runs"))["runs"]
        self.assertEqual(len(found), len(runs))
        for each in found:
            self.assertLessEqual(len(each["curves"]["loss"]["steps"]), 1000)
            self.assertIn(50.0, each["curves"]["loss"]["values"])

    def test_spikes_beside_numbers_that_are_not_finite_stay_in_long_curves(self):
        odd = {step: "nan" for step in range(10, 20001, 10)} | {5003: "inf", 9001: "-inf"}
        lines = [step_line(step, loss=odd.get(step, 50.0 if step == 7777 else 2.0 if step == 5001 else 1.0)) for step in range(1, 20001)]
        write_run(self.folder / "spikes", lines)
        (found,) = page_data(self.page_of("spikes"))["runs"]
        curve = found["curves"]["loss"]
        self.assertLessEqual(len(curve["steps"]), 2000)
        shown = dict(zip(curve["steps"], curve["values"], strict=True))
        self.assertEqual((shown.get(7777), shown.get(5001)), (50.0, 2.0))
        self.assertEqual((curve["steps"][0], curve["steps"][-1]), (1, 20000))
        self.assertEqual(curve["steps"], sorted(shown))
        self.assertEqual({step: lines[step - 1]["loss"] for step in shown}, shown)
        self.assertIn("nan", shown.values())

    def test_losses_per_byte_and_per_word_are_shown(self):
        write_run(self.folder / "words", [step_line(1), {"event": "eval", "step": 1, "val_loss": 2.0, "tokens": 9, "bits_per_byte": 1.5,
                                                         "perplexity_per_word": 99.5}])
        curves = page_data(self.page_of("words"))["runs"][0]["curves"]
        self.assertEqual((curves["bits_per_byte"]["values"], curves["perplexity_per_word"]["values"]), ([1.5], [99.5]))
        self.assertEqual(curves["tokens"]["values"], [512])
        (row,) = csv.DictReader(io.StringIO(self.report("words", "--csv", "-").stdout))
        self.assertEqual((row["bits_per_byte"], row["perplexity_per_word"]), ("1.5", "99.5"))

    def test_malicious_folders(self):
        deep = '{"event": "start", "x": ' + "[" * 200_000 + "]" * 200_000 + "}\n"
        folder = write_run(self.folder / "odd", [step_line(1, **{"a,b": 1.0})])
        (folder / "metrics.jsonl").write_text(deep + (folder / "metrics.jsonl").read_text())
        (folder / "config.json").write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
        (found,) = page_data(self.page_of("odd"))["runs"]
        self.assertEqual(found["curves"]["loss"]["steps"], [1])
        self.assertIn('"a,b"', self.report("odd", "--csv", "-").stdout.splitlines()[0])
        (folder / "config.json").unlink()
        os.mkfifo(folder / "config.json")
        self.assertEqual(page_data(self.report("odd", "--output", "-", timeout=20).stdout)["runs"][0]["settings"], {})

    def states_of(self, *names):
        runs = page_data(self.page_of(*names))["runs"]
        return [(each["state_kind"], each["state"]) for each in runs]

    def test_the_lock_tells_whether_a_run_is_alive(self):
        lines = [start_line(), step_line(1), step_line(2)]
        here, elsewhere = f"process 1 on host {socket.gethostname()}", "process 1 on host elsewhere"
        for name, holder in (("dead", here), ("running", here), ("far", elsewhere), ("far-running", elsewhere), ("none", None)):
            folder = write_run(self.folder / name, lines)
            if holder:
                (folder / "lock").write_text(holder)
        locks = [(self.folder / name / "lock").open() for name in ("running", "far-running")]
        for lock in locks:
            self.addCleanup(lock.close)
            fcntl.flock(lock, fcntl.LOCK_EX)
        names = ("dead", "running", "far", "far-running", "none")
        self.assertEqual([kind for kind, _ in self.states_of(*names)], ["dead", "running", "unknown", "running", "unknown"])
        self.assertIn("step 2", self.states_of("dead")[0][1])
        # A path that is not a lock file gives no state, and opening it does not block.
        (self.folder / "dead" / "lock").unlink()
        os.mkfifo(self.folder / "dead" / "lock")
        self.assertEqual(self.states_of("dead")[0][0], "unknown")

    def test_the_end_of_a_run_counts_until_it_is_restarted(self):
        steps = [start_line(), step_line(1)]
        ends = {"finished": [{"event": "end", "step": 1}], "finished: --patience 3": [{"event": "end", "step": 1, "reason": "--patience 3"}],
                "failed: no space": [{"event": "failure", "step": 1, "message": "no space"}]}
        for text, lines in ends.items():
            write_run(self.folder / text, [*steps, *lines])
            write_run(self.folder / f"again {text}", [*steps, *lines, start_line()])
        stopped = write_run(self.folder / "stopped", steps)
        (stopped / "REQUEUE").write_text("stopped after step 1 by SIGTERM\n")
        for folder in self.folder.iterdir():
            (folder / "lock").write_text(f"process 1 on host {socket.gethostname()}")
        ((state, text),) = self.states_of("stopped")
        self.assertEqual(state, "stopped")
        assert_names(text, "step 1")
        for text in ends:
            self.assertEqual(self.states_of(text), [(text.split(":")[0], text)])
            self.assertEqual(self.states_of(f"again {text}")[0][0], "dead")

    def test_a_run_is_running_until_killed_and_a_failed_one_has_a_reason(self):
        train = ["train", "--layers", "1", "--width", "16", "--heads", "2", "--neurons", "16", "--seq-len", "16", "--threads", "1",
                 "--data", GOLDEN / "text.bin"]
        command = launched(1, *train, "--steps", 10**7, "--run-dir", self.folder / "long")
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                metrics, end = self.folder / "long" / "metrics.jsonl", time.monotonic() + 60
                while not (metrics.exists() and '"loss"' in metrics.read_text()) and time.monotonic() < end:
                    time.sleep(0.01)
                self.assertEqual(self.states_of("long")[0][0], "running")
            finally:
                process.kill()
        self.assertEqual(self.states_of("long")[0][0], "dead")
        result = run(*launched(1, *train, "--steps", "9", "--lr", "1e30", "--grad-clip", "0", "--run-dir", self.folder / "bad"), status=7)
        kind, text = self.states_of("bad")[0]
        self.assertEqual(kind, "failed")
        self.assertIn(text.removeprefix("failed: "), result.stderr)
        (failure,) = [line for line in metrics_of(self.folder / "bad") if line.get("event") == "failure"]
        self.assertEqual(failure["step"], max(line["step"] for line in metrics_of(self.folder / "bad") if "event" not in line))

    def test_a_folder_of_runs_expands_to_all_runs_below_it(self):
        for name in ("sweep/lr-10/one", "sweep/lr-2/one", "sweep/two"):
            write_run(self.folder / name, [start_line(), step_line(1)])
        (self.folder / "sweep" / "refused").mkdir()
        # Folders inside a run and targets of links are not further runs.
        write_run(self.folder / "sweep/two/inner", [step_line(1)])
        (self.folder / "sweep" / "link").symlink_to("two")
        write_run(self.folder / "elsewhere", [step_line(1)])
        (self.folder / "sweep" / "moved").symlink_to("../elsewhere")
        (self.folder / "sweep" / "gone").symlink_to("nowhere")
        write_run(self.folder / "sweep/void", [])
        result = self.report("sweep")
        self.assertEqual(result.stdout, "sweep/report.html\n")
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertIn("sweep/void", result.stderr)
        names = [each["name"] for each in page_data((self.folder / "sweep/report.html").read_text())["runs"]]
        self.assertEqual(names, ["sweep/lr-2/one", "sweep/lr-10/one", "moved", "two"])
        rows = list(csv.DictReader(io.StringIO(self.report("sweep", "sweep/two", "--csv", "-").stdout)))
        self.assertEqual([row["run"] for row in rows], names)
        self.assertEqual(self.report("sweep", "sweep/two").stdout, "report.html\n")
        # The expansion of sweep/* once the page exists.
        (self.folder / "sweep" / "gone").unlink()
        self.assertEqual(len(page_data(self.page_of(*sorted(str(path) for path in (self.folder / "sweep").iterdir())))["runs"]), 4)
        (self.folder / "bare" / "deep").mkdir(parents=True)
        assert_names(self.report("bare", status=DATA).stderr, "bare")
        assert_names(self.report("sweep", "none", status=DATA).stderr, "none")

    def test_cards_and_the_table_have_the_figures_of_metrics_jsonl(self):
        lines = [start_line(), *(step_line(step, loss=float(step), tokens_per_second=100.0 * step) for step in range(1, 61)),
                 {"event": "eval", "step": 30, "val_loss": 1.5, "tokens": 1}, {"event": "eval", "step": 60, "val_loss": 2.5, "tokens": 1}]
        lines[60]["loss"] = "nan"
        write_run(self.folder / "one", lines)
        (found,) = page_data(self.page_of("one"))["runs"]
        self.assertEqual(found["figures"], {"steps": 60, "parameters": 1234, "loss": sum(range(11, 60)) / 49, "val_loss": 2.5,
                                            "lowest_val_loss": 1.5, "seconds": 60.0, "tokens": 512.0 * 60, "tokens_per_second": 3100.0,
                                            "memory": 1.0})
        facts = {name: value for name, value, _ in found["summary"]}
        self.assertEqual((facts["parameters"], facts["loss, steps 11 to 60"]), (1234, sum(range(11, 60)) / 49))

    def test_the_lowest_loss_is_one_on_the_sequences_of_the_last_evaluation(self):
        found = [(1, 1.0, "a"), (2, 3.0, "b"), (3, 0.5, None), (4, 2.0, "b"), (5, "nan", "b"), (6, 2.5, "b")]
        evaluations = [{"event": "eval", "step": step, "val_loss": loss, "tokens": 1, **({"data": data} if data else {})}
                       for step, loss, data in found]
        for count, expected in ((6, (2.0, 4)), (3, (0.5, 3)), (1, (1.0, 1))):
            write_run(self.folder / f"{count}", [start_line(), step_line(1), *evaluations[:count]])
            (run,) = page_data(self.page_of(f"{count}"))["runs"]
            self.assertEqual(run["figures"]["lowest_val_loss"], expected[0])
            self.assertIn(["lowest", f"{expected[0]:.4f} after step {expected[1]}", "text"], run["summary"])

    def test_memory_of_ranks_that_are_threads_is_compared_with_that_of_all(self):
        write_run(self.folder / "threads", [start_line(), step_line(1), {"event": "memory", "step": 1, "predicted_bytes": 6, "peak_bytes": 7}])
        layout = page_data(self.page_of("threads"))["runs"][0]["layout"]
        self.assertEqual([fact[1] for fact in layout if fact[0] in ("predicted memory", "measured")], [6, 7])

    def test_a_run_in_progress_is_shown_up_to_its_last_line(self):
        folder = write_run(self.folder / "now", [start_line(), step_line(1), step_line(2)])
        with (folder / "metrics.jsonl").open("a") as file:
            file.write('{"step": 3, "lo')
        (found,) = page_data(self.page_of("now"))["runs"]
        self.assertEqual(found["curves"]["loss"]["steps"], [1, 2])
        assert_names(found["state"], "step 2")

    def test_a_resumed_run_has_the_same_data_as_one_that_was_not(self):
        full = {"train": "/home/u/book.txt"}
        for name, path, resume in (("one", "book.txt", "none"), ("two", "/home/u/book.txt", "auto")):
            write_run(self.folder / name, [step_line(1)], {"data": full, "checkpoint": {"resume": "none"}, "resolved": {
                "data": {"train": path}, "checkpoint": {"resume": resume}, "train": {"lr": 1e-3}}})
        one, two = page_data(self.page_of("one", "two"))["runs"]
        self.assertEqual(one["settings"], two["settings"])
        self.assertEqual(one["settings"]["data.train"], "/home/u/book.txt")

    def test_an_unreadable_run_is_not_reported_as_empty(self):
        write_run(self.folder / "mine", [step_line(1)]).chmod(0)
        self.addCleanup((self.folder / "mine").chmod, 0o755)
        self.folder.chmod(0o755)
        result = run(*as_nobody(DTRAIN, "report", "mine"), cwd=self.folder, status=DATA)
        self.assertIn("mine: Permission denied", result.stderr)
        (self.folder / "mine").chmod(0o555)
        result = run(*as_nobody(DTRAIN, "report", "mine"), cwd=self.folder, status=DATA)
        self.assertIn("--output FILE.html", result.stderr)

    def test_a_path_without_a_run_is_refused_by_name(self):
        (self.folder / "empty").mkdir()
        (self.folder / "file").write_text("")
        for name in ("empty", "file", "none"):
            assert_names(self.report(name, status=DATA).stderr, name)
        write_run(self.folder / "good", [step_line(1)])
        result = self.report("empty", "good")
        assert_names(result.stderr, "skipped", "empty", "metrics.jsonl")
        self.assertEqual([each["name"] for each in page_data((self.folder / "report.html").read_text())["runs"]], ["good"])
        (self.folder / "report.html").unlink()
        write_run(self.folder / "void", [])
        assert_names(self.report("void", status=DATA).stderr, "void")
        assert_names(self.report(status=USAGE).stderr, "FOLDER")
        self.assertFalse((self.folder / "report.html").exists())

    def test_it_replaces_its_own_pages_and_nothing_else(self):
        write_run(self.folder / "a", [step_line(1)])
        write_run(self.folder / "b", [step_line(1)])
        self.assertEqual(self.report("a").stdout, "a/report.html\n")
        self.report("a")
        self.assertEqual(self.report("a", "b").stdout, "report.html\n")
        mine = self.folder / "mine.html"
        mine.write_text("mine")
        for flag in ("--output", "--csv"):
            self.assertIn("mine.html exists", self.report("a", flag, mine, status=USAGE).stderr)
            self.assertEqual(mine.read_text(), "mine")
        self.assertEqual([self.report("a", "--csv", "figures.csv").stdout for _ in range(2)], ["figures.csv\n"] * 2)
        self.report("a", "--output", mine, "--overwrite")
        self.assertNotEqual(mine.read_text(), "mine")

    def test_a_page_is_self_contained(self):
        page = self.page_of(self.real)
        self.assertIn("default-src 'none'", page)
        program = DATA_OF_PAGE.sub("", page).replace("http://www.w3.org/2000/svg", "")
        self.assertIsNone(re.search(r"https?:|\bsrc=|\bhref=|@import|url\(|fetch\(|XMLHttpRequest", program))

    def test_text_of_a_run_cannot_end_the_data(self):
        name = "<b>&'\"x"
        write_run(self.folder / name, [start_line(host=HOSTILE), {"event": "error", "step": 1, "message": HOSTILE},
                                       {"event": "sample", "step": 1, "text": HOSTILE}, step_line(1)], {"data": {"train": HOSTILE}})
        page = self.page_of(name)
        self.assertNotIn("<img", page)
        self.assertEqual(page.count("</script>"), 2)
        (found,) = page_data(page)["runs"]
        self.assertEqual(found["name"], name)
        self.assertEqual([each["message"] for each in found["warnings"]], [HOSTILE])
        self.assertEqual(found["settings"], {"data.train": HOSTILE})


class Browser(FolderTest):
    """The page in headless Chromium."""

    def opened(self, page, script=""):
        """The elements of a page after its own script and the test's script ran."""
        file = self.folder / "page.html"
        file.write_text(page.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
        return self.elements(file)

    def elements(self, file):
        return run("chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={self.folder}/profile",
                   "--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=3000", "--dump-dom", file.as_uri()).stdout

    def page_of(self, *folders):
        return run(DTRAIN, "report", *folders, "--output", "-").stdout

    def test_all_curves_of_all_runs_are_drawn_within_seconds(self):
        runs = [write_run(self.folder / name, [start_line(), *(step_line(step) for step in range(1, 5001)),
                                               {"event": "eval", "step": 5000, "val_loss": 2.5, "tokens": 1}])
                for name in ("one", "two")]
        dom = self.opened(self.page_of(*runs))
        figures = re.findall(r'<figure data-key="(\w+)">(.*?)</figure>', dom, re.DOTALL)
        self.assertEqual([key for key, _ in figures][:2], ["loss", "val_loss"])
        self.assertEqual(len(figures), CURVES + 1)
        for key, figure in figures:
            self.assertEqual(len(re.findall(r"<path [^>]*d=\"M[\d.]+ [\d.]+", figure)), 2, key)
        self.assertLess(int(re.search(r"Drawn in (\d+) ms", dom).group(1)), 5000)

    def sweep(self, count):
        """Runs whose losses fall as their numbers rise; the first has another size."""
        return [write_run(self.folder / f"run-{number}",
                          [{**start_line(), "parameters": 7777 if number == 1 else 1234},
                           *(step_line(step, loss=9.0 - 0.1 * number) for step in (1, 2))], {"train": {"lr": number / 8}})
                for number in range(1, count + 1)]

    def test_twenty_runs_have_twenty_colours_and_more_have_dashes(self):
        dom = self.opened(self.page_of(*self.sweep(21)))
        (figure,) = re.findall(r'<figure data-key="loss">(.*?)</figure>', dom, re.DOTALL)
        lines = [(re.search('stroke="([^"]*)"', path)[1], re.search('stroke-dasharray="([^"]*)"', path)[1])
                 for path in re.findall("<path [^>]*>", figure)]
        self.assertEqual(len({color for color, _ in lines[:20]}), 20)
        self.assertEqual({dashes for _, dashes in lines[:20]}, {"none"})
        self.assertEqual(len(set(lines)), 21)

    def test_the_table_is_sorted_by_a_click_on_any_of_its_columns(self):
        names = """() => [...document.querySelectorAll("#runs tbody tr")].map((row) => row.cells[0].textContent.trim()).join()"""
        script = f"""const names = {names}, orders = {{}};
            for (const button of document.querySelectorAll("#runs th button")) {{
              for (const direction of [1, 2]) {{ button.click(); orders[button.textContent + direction] = names(); }}
            }}
            document.body.dataset.orders = JSON.stringify(orders)"""
        runs = self.sweep(11)
        (runs[4] / "metrics.jsonl").write_text(json.dumps(step_line(1, loss="nan")) + "\n")  # no size, no loss
        dom = self.opened(self.page_of(*runs), script)
        orders = json.loads(html.unescape(re.search('data-orders="([^"]*)"', dom)[1]))
        rising = [f"run-{number}" for number in range(1, 12)]
        known = [name for name in rising if name != "run-5"]
        expected = {"run1": rising, "run2": rising[::-1], "training loss1": [*known[::-1], "run-5"], "training loss2": [*known, "run-5"],
                    "train.lr1": rising}
        for column, order in expected.items():
            self.assertEqual(orders[column].split(","), order, column)
        largest_first = orders["parameters2"].split(",")  # all others are of one size
        self.assertEqual((largest_first[0], largest_first[-1]), ("run-1", "run-5"))

    def test_sizes_are_on_cards_and_among_the_differences(self):
        dom = self.opened(self.page_of(*self.sweep(2)))
        self.assertEqual(re.findall(r"<dt>parameters</dt><dd>([^<]*)</dd>", dom)[:2], ["7,777", "1,234"])
        differing = dom[dom.index("differ"):]
        self.assertIn("<td>parameters</td><td>7,777</td><td>1,234</td>", differing)
        same = self.opened(self.page_of(self.folder / "run-2", write_run(self.folder / "other", [start_line(), step_line(1)])))
        self.assertNotIn("<td>parameters</td>", same)

    def test_ticks_hide_a_run_in_table_card_and_curves_alike(self):
        script = """document.querySelector("#runs tbody input").click();
            document.body.dataset.hidden = [document.querySelectorAll(".card.hidden").length, document.querySelectorAll("tr.hidden").length,
              document.querySelectorAll('[data-key="loss"] path').length, document.querySelectorAll("input:checked").length].join()"""
        dom = self.opened(self.page_of(*self.sweep(2)), script)
        self.assertEqual(re.search('data-hidden="([^"]*)"', dom)[1], "1,1,1,2")

    def test_a_curve_of_zeros_is_left_out(self):
        folder = write_run(self.folder / "one", [start_line(), *(step_line(step, wait_seconds=0, comm_bytes=0) for step in (1, 2))])
        keys = re.findall(r'<figure data-key="(\w+)">', self.opened(self.page_of(folder)))
        self.assertEqual(keys, [key for key in STEP_KEYS if key not in ("wait_seconds", "comm_bytes")])

    def test_a_phone_needs_no_scrolling_to_the_side(self):
        folder = write_run(self.folder / "a-run-with-quite-a-long-name-that-has-to-be-broken-somewhere", [
            start_line(cpu="x" * 200), {"event": "error", "step": 1, "message": "y" * 500}, step_line(1), step_line(2)])
        other = write_run(self.folder / "other", [start_line(), step_line(1, loss=7.0)], {"train": {"lr": 2e-3}})
        # No window is so narrow: the page stands in a frame, and tells its sizes to the page around.
        self.opened(self.page_of(folder, other), "const {clientWidth, scrollWidth} = document.documentElement;"
                    "parent.postMessage([clientWidth, scrollWidth].join(), '*')")
        around = self.folder / "around.html"
        around.write_text('<body><script>onmessage = (event) => { document.body.dataset.sizes = event.data; };</script>'
                          '<iframe width="390" height="844" style="border: 0" src="page.html"></iframe></body>')
        visible, wide = map(int, re.search(r'data-sizes="(\d+),(\d+)"', self.elements(around)).groups())
        self.assertTrue(300 < visible <= 390, visible)
        self.assertLessEqual(wide, visible)

    def test_text_of_a_run_is_never_executed(self):
        folder = write_run(self.folder / "hostile", [
            start_line(host=HOSTILE), {"event": "error", "step": 1, "message": HOSTILE},
            {"event": "sample", "step": 1, "text": HOSTILE}, step_line(1)], {"data": {"train": HOSTILE}})
        dom = self.opened(self.page_of(folder), "document.body.dataset.title = document.title")
        self.assertEqual(re.findall(r'data-title="([^"]*)"', dom), ["dtrain report"])
        self.assertEqual(re.findall("<img[^>]*>", dom), [])
        self.assertGreaterEqual(dom.count("&lt;/script&gt;&lt;img src=x onerror="), 4)


if __name__ == "__main__":
    unittest.main()
