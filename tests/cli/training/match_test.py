"""--match chooses the sizes of a model to be as large as another, and a run keeps them."""

import json
import shutil
import unittest

from dtrain_harness import CONSTANT_RATE, DTRAIN, DTRUN, GOLDEN, SOURCE, USAGE, FolderTest, metrics_of, run
from messages import assert_names, lines_naming

TEXT = GOLDEN / "text.bin"
WORK = ("--data", TEXT, "--val-fraction", 0, "--sample-every", 0, "--global-batch", 4, "--threads", 1, *CONSTANT_RATE)
BDH = ("--layers", 3, "--width", 32, "--heads", 2, "--neurons", 160, "--seq-len", 32)
SIZES = ("layers", "width", "heads", "intermediate_size")
MINI = SOURCE / "configs/experiments/mini.json"


def sizes_of(config):
    return {key: config["model"][key] for key in SIZES}


class Runs(FolderTest):
    def train(self, name, *flags):
        return run(DTRAIN, *WORK, "--checkpoint-every", 2, "--run-dir", name, *flags, cwd=self.folder)

    def configuration(self, name):
        return json.loads((self.folder / name / "config.json").read_text())

    def start_of(self, name):
        (start,) = [line for line in metrics_of(self.folder / name) if line.get("event") == "start"][-1:]
        return start

    def test_a_llama_matches_a_run_and_keeps_its_sizes(self):
        self.train("bdh", *BDH, "--steps", 1)
        for by, figure in (("parameters", "parameters"), ("flops", "flops_per_token")):
            result = self.train(by, "--model", "llama", "--match", "bdh", "--match-by", by, "--steps", 2)
            ours, theirs = (self.start_of(name)[figure] for name in (by, "bdh"))
            self.assertLessEqual(abs(ours / theirs - 1), 0.02)
            config = self.configuration(by)
            sizes = sizes_of(config)
            self.assertEqual(sizes_of(config["resolved"]), sizes)
            self.assertEqual((sizes["layers"], sizes["heads"], config["data"]["seq_len"]), (3, 2, 32))
            self.assertNotIn("match", config)
            flags = [f"--{key.replace('_', '-')} {value}" for key, value in sizes.items()]
            assert_names(result.stderr, "--match bdh", *flags, f"{ours:.0f}", f"{theirs:.0f}", f"{100 * (ours / theirs - 1):+.2f}%")

        # The run that was matched is not needed any more.
        shutil.rmtree(self.folder / "bdh")
        sizes = sizes_of(self.configuration("flops"))
        again = ("--model", "llama", "--match", "bdh", "--match-by", "flops", "--resume", "auto")
        self.train("flops", *again, "--steps", 3)
        self.write("empty.json", "{}")
        result = self.train("flops", *again, "--steps", 4, "--config", "empty.json")
        assert_names(result.stderr, "--match bdh", "flops")
        self.assertEqual(metrics_of(self.folder / "flops")[-1]["step"], 4)
        self.assertEqual(sizes_of(self.configuration("flops")), sizes)

    def test_a_restarted_job_keeps_the_sizes(self):
        self.write("bdh.json", '{"model": {"layers": 2, "width": 32, "heads": 2, "neurons": 64}}')
        script = ('if [ ! -e died ]; then "$@" & until [ -e run/checkpoints/step-100 ]; do sleep 0.02; done; '
                  'touch died; kill -9 $!; wait $!; rm bdh.json; kill -9 $$; fi; exec "$@"')
        result = run(DTRUN, "-n", 1, "--max-restarts", 1, "--", "sh", "-c", script, "sh", DTRAIN, *WORK, "--checkpoint-every", 100,
                     "--seq-len", 16, "--model", "llama", "--match", "bdh.json", "--steps", 1000, "--run-dir", "run", cwd=self.folder)
        text = result.stderr + result.stdout
        self.assertEqual(len(lines_naming(text, "--match bdh.json", "--layers 2")), 1, text)
        self.assertEqual(metrics_of(self.folder / "run")[-1]["step"], 1000)


class Settings(FolderTest):
    def sizes(self, *flags, command=()):
        """The sizes of a Llama that these flags choose."""
        return sizes_of(json.loads(run(DTRAIN, *command, "--print-config", "--model", "llama", *flags, cwd=self.folder).stdout))

    def test_shipped_llamas_have_the_chosen_sizes(self):
        for name in ("mini", "small"):
            shipped = run(DTRAIN, "--print-config", "--config", SOURCE / f"configs/experiments/{name}_llama.json").stdout
            self.assertEqual(self.sizes("--match", SOURCE / f"configs/experiments/{name}.json"), sizes_of(json.loads(shipped)))

    def test_flags_stay_and_sizes_of_files_give_way(self):
        free = self.sizes("--match", MINI)
        self.assertEqual(self.sizes("--match", MINI, "--config", MINI), free)
        self.assertEqual(self.sizes("--match", MINI, "--set", "model.width=64")["width"], 64)
        fixed = self.sizes("--match", MINI, "--layers", 6, "--intermediate-size", 160)
        self.assertEqual((fixed["layers"], fixed["intermediate_size"]), (6, 160))

    def test_plan_and_doctor_take_it(self):
        for command in ("plan", "doctor"):
            self.assertEqual(self.sizes("--match", MINI, "--match-by", "flops", command=[command])["layers"], 4)

    def test_a_bdh_matches_a_llama(self):
        self.write("llama.json", '{"model": {"name": "llama", "layers": 5, "width": 96}, "data.seq_len": 48}')
        config = json.loads(run(DTRAIN, "--print-config", "--match", "llama.json", cwd=self.folder).stdout)
        self.assertEqual((config["model"]["name"], config["model"]["layers"], config["data"]["seq_len"]), ("bdh", 5, 48))
        self.assertNotEqual(config["model"]["neurons"], 512)

    def test_what_cannot_be_matched_is_refused(self):
        self.write("folder/config.json", '{"model_type": "llama"}')
        self.write("odd.json", '{"model.neurons": 7}')
        mini = f"--match {MINI}"
        for words, *names in (
                ("--match nowhere", "--match", "'nowhere'"),
                ("--match folder", "--match", "'folder'"),
                ("--match odd.json", "--match", "--neurons 7"),
                ("--match=", "--match"),
                ("--match-by flops", "--match-by flops", "--match"),
                (mini + " --match-by flop", "--match-by", '"flop"', "parameters", "flops"),
                (mini + " --init-from weights", MINI, "--init-from weights"),
                (mini + " --resume run", MINI, "--resume run"),
                (mini + " --model llama --width 256 --intermediate-size 700", MINI, "425984", "2%", "--width 256 --intermediate-size 700",
                 "--layers 1", "931584", "+118.7%")):
            self.refused(words, *names, status=USAGE)


if __name__ == "__main__":
    unittest.main()
