"""The front end's answers to good and bad settings, as a user meets them."""

import errno
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["DTRAIN_BINARY_DIR"])
SOURCE = pathlib.Path(os.environ["DTRAIN_SOURCE_DIR"])
DTRAIN = BUILD / "bin" / "dtrain"
USAGE, DATA, CHECKPOINT = 2, 3, 6
RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "MASTER_", "OMPI_", "PMI_", "SLURM_", "DTRUN_", "OMP_",
                  "COLUMNS", "TORCHELASTIC_")


def run(*arguments, variables=None, cwd=None):
    environment = {key: value for key, value in os.environ.items() if not key.startswith(RANK_VARIABLES)}
    environment.update(variables or {})
    return subprocess.run([DTRAIN, *map(str, arguments)], capture_output=True, text=True, timeout=60,
                          env=environment, cwd=cwd, check=False)


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="dtrain-config-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.text = self.folder / "text.txt"
        self.text.write_text("In the beginning God created the heaven and the earth.\n" * 40)

    def refused(self, status, *parts, arguments, variables=None):
        result = run(*arguments, variables=variables)
        self.assertEqual(result.returncode, status, result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("dtrain: error: "), result.stderr)
        for part in parts:
            self.assertIn(str(part), result.stderr)
        self.assertEqual(result.stdout, "")


class Printing(Case):
    def resolved(self, *arguments, variables=None):
        result = run("--print-config", *arguments, variables=variables)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return json.loads(result.stdout)

    def test_help_and_version_go_to_standard_output(self):
        for arguments in (["--help"], ["train", "--help"], ["generate", "-h"], ["verify", "--help"], ["data", "--help"]):
            result = run(*arguments)
            self.assertEqual((result.returncode, result.stderr), (0, ""), arguments)
            self.assertGreater(len(result.stdout), 200)
            self.assertLessEqual(max(map(len, result.stdout.splitlines())), 100)
        self.assertRegex(run("--version").stdout, r"^dtrain \d+\.\d+\.\d+ \(commit ([0-9a-f]{12}(-modified)?|unknown)\)\n$")

    def test_every_configuration_of_the_repository_resolves(self):
        files = sorted(SOURCE.glob("configs/*/*.json"))
        self.assertEqual(len(files), 7)
        for file in files:
            self.resolved("--config", file)

    def test_named_sizes(self):
        for name, (width, heads, neurons, levels, length) in {
                "mini": (64, 4, 512, 4, 128), "small": (128, 4, 1024, 4, 256), "25m": (256, 4, 8192, 6, 512)}.items():
            config = self.resolved("--config", SOURCE / f"configs/experiments/{name}.json")
            model = config["model"]
            self.assertEqual([model[key] for key in ("width", "heads", "neurons", "levels")],
                             [width, heads, neurons, levels])
            self.assertEqual(config["data"]["seq_len"], length)

    def test_nothing_automatic_is_left(self):
        config = self.resolved("--config", SOURCE / "configs/experiments/mini.json", "--strategy", "ddp", variables={
            "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "3"})
        self.assertEqual(config["batch"], {"global": 8, "microbatch": 1, "grad_accum": 4})
        layout = config["layout"]
        self.assertEqual({key: layout[key] for key in ("strategy", "dp", "nnodes", "shard_size", "accumulate")},
                         {"strategy": "ddp", "dp": 2, "nnodes": 1, "shard_size": 1, "accumulate": "local"})
        self.assertEqual([config["machine"][key] for key in ("device", "backend", "threads")], ["cpu", "shm", 3])

    def test_what_is_printed_is_a_configuration_file(self):
        first = self.resolved("--config", SOURCE / "configs/experiments/small.json", "--lr", "0.1234567890123456789")
        file = self.folder / "printed.json"
        file.write_text(json.dumps(first))
        self.assertEqual(self.resolved("--config", file), first)
        self.assertEqual(first["train"]["lr"], 0.1234567890123456789)

    def test_only_rank_0_prints(self):
        variables = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
        result = run("--print-config", "--strategy", "ddp", variables=variables)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))

    def test_settings_page_is_current(self):
        page = (SOURCE / "docs" / "settings.md").read_text()
        self.assertEqual(page, run("settings").stdout, "write it with: dtrain settings > docs/settings.md")

    def test_a_full_disk_is_told(self):
        text = SOURCE / "tests/golden/text.bin"
        for words in (["settings"], ["--help"], ["help", "lr"], ["--version"], ["--print-config"], ["data", "info", text],
                      ["plan", "--data", text, "--ranks", "2"], ["doctor"], ["completion", "bash"]):
            with self.subTest(words[0]), open("/dev/full", "w") as full:
                result = subprocess.run([DTRAIN, *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
                self.assertEqual(result.returncode, USAGE, result.stderr)
                self.assertRegex(result.stderr, rf"\Adtrain: error: [^\n]*{os.strerror(errno.ENOSPC)}[^\n]*\n\Z")


class Refusing(Case):
    def test_unknown_names_suggest_the_nearest(self):
        for names, words in ((("--widht", "--width"), ["--widht", "3"]), (("trian", "train"), ["trian"]),
                             (("model.widht", "model.width"), ["--set", "model.widht=3"])):
            self.refused(USAGE, *names, arguments=words)
        file = self.folder / "wrong.json"
        file.write_text('{"model": {"widht": 3}}')
        self.refused(USAGE, file, "model.width", arguments=["--config", file])

    def test_later_backends_and_devices_are_known_but_not_built(self):
        self.refused(USAGE, "--backend", "nccl", "--device cuda", arguments=["--backend", "nccl"])
        self.refused(USAGE, "--device", "one of auto, cpu", arguments=["--device", "tpu"])

    def test_contradictions(self):
        self.refused(USAGE, "--neurons 7 is odd", arguments=["--neurons", "7"])
        self.refused(USAGE, "8", "2", "3", "= 6",
                     arguments=["--global-batch", "8", "--microbatch", "2", "--grad-accum", "3"])
        self.refused(USAGE, "--nnodes 2", arguments=["--nnodes", "2"])
        ranks = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
        self.refused(USAGE, "--strategy single", "2", "--strategy ddp", arguments=["--strategy", "single"], variables=ranks)
        self.refused(USAGE, "MASTER_ADDR", "dtrun -n 2", arguments=["--strategy", "ddp"], variables=ranks)
        self.refused(USAGE, "RANK", "OMPI_COMM_WORLD_RANK", arguments=[], variables={
            "RANK": "0", "WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"})

    def test_files_that_are_missing_or_foreign(self):
        run_dir = self.folder / "run"
        self.refused(USAGE, "--data", arguments=["--run-dir", run_dir])
        self.refused(DATA, "/nowhere", arguments=["--run-dir", run_dir, "--data", "/nowhere"])
        empty = self.folder / "empty"
        empty.touch()
        self.refused(DATA, empty, arguments=["--run-dir", run_dir, "--data", empty])
        self.refused(DATA, self.text, "--seq-len",
                     arguments=["--run-dir", run_dir, "--data", self.text, "--seq-len", "4096"])
        self.refused(USAGE, "--from", arguments=["generate"])
        self.refused(CHECKPOINT, self.text, arguments=["generate", "--from", self.text, "--prompt", "x"])
        self.refused(USAGE, "--golden", arguments=["verify"])
        self.refused(CHECKPOINT, "/nowhere", arguments=["verify", "--golden", "/nowhere"])
        self.assertFalse(run_dir.exists())

    def test_a_folder_that_holds_another_run_is_left_alone(self):
        run_dir = self.folder / "run"
        run_dir.mkdir()
        (run_dir / "config.json").write_text("{}")
        arguments = ["--data", self.text, "--seq-len", "16", "--run-dir", run_dir]
        self.refused(USAGE, run_dir, "already holds a run", "--overwrite", arguments=arguments)
        self.assertEqual([path.name for path in run_dir.iterdir()], ["config.json"])
        self.assertEqual((run_dir / "config.json").read_text(), "{}")

    def test_a_run_folder_that_cannot_be(self):
        file = self.folder / "file"
        file.touch()
        arguments = ["--data", self.text, "--seq-len", "16", "--run-dir"]
        self.refused(USAGE, file, "not a folder", arguments=[*arguments, file])
        self.refused(USAGE, file, "not a folder", arguments=[*arguments, file / "below"])

    def test_a_wrong_rank_waits_for_the_first_to_speak(self):
        variables = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
        with self.assertRaises(subprocess.TimeoutExpired) as caught:
            subprocess.run([DTRAIN, "--neurons", "7"], env={**os.environ, **variables}, timeout=0.4,
                           capture_output=True, check=False)
        self.assertFalse(caught.exception.stderr)
        self.refused(USAGE, "--data", arguments=[], variables={**variables, "MASTER_ADDR": "localhost", "MASTER_PORT": "1"})  # printed when nobody ends it


class LibTorchMissing(Case):
    def test_is_told_in_one_line(self):
        """A copy of the program has no libdtrain.so beside it; nothing is touched then."""
        program = self.folder / "bin" / "dtrain"
        program.parent.mkdir()
        program.write_bytes(DTRAIN.read_bytes())
        program.chmod(0o755)
        run_dir = self.folder / "run"
        run_dir.mkdir()
        (run_dir / "config.json").write_text(
            '{"model": {"levels": 1}, "train": {"steps": 1}, "layout": {"strategy": ""}, "run": {"dir": ""}}')
        result = subprocess.run([program, "--data", self.text, "--width", "32", "--seq-len", "16", "--run-dir", run_dir,
                                 "--overwrite"],
                                capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, USAGE, result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1)
        self.assertIn("libdtrain.so", result.stderr)
        self.assertIn("scripts/setup.sh", result.stderr)
        self.assertTrue((run_dir / "config.json").exists())


if __name__ == "__main__":
    unittest.main()
