"""The commands dtrain checkpoint list, inspect, verify, diff, export and import."""

import functools
import json
import pathlib
import shutil
import struct
import unittest

from dtrain_harness import CHECKPOINT, DIFFERENT, DTRAIN, USAGE, FolderTest, final_model, launched, make_folder, metrics_of, run
from messages import assert_error, assert_names
from safetensors_file import read_model, write_model

LEVELS, WIDTH, HEADS, NEURONS, VOCAB = 2, 12, 2, 10, 256
SHAPES = {"embed.weight": [VOCAB, WIDTH], "encoder": [HEADS, WIDTH, NEURONS], "encoder_v": [HEADS, WIDTH, NEURONS],
          "decoder": [HEADS * NEURONS, WIDTH], "lm_head": [WIDTH, VOCAB], "attn.freqs": [1, 1, 1, NEURONS]}


def tool(*arguments, status=None):
    return run(DTRAIN, "checkpoint", *arguments, status=status)


def training(folder, name, *arguments, ranks=1):
    text = folder / "text.txt"
    text.write_text("In the beginning God created the heaven and the earth.\n" * 40)
    strategy = ["--strategy", "ddp"] if ranks > 1 else []
    return run(*launched(ranks, *strategy, "--layers", LEVELS, "--width", WIDTH, "--heads", HEADS, "--neurons", NEURONS, "--data",
                         text, "--seq-len", 16, "--global-batch", 4, "--microbatch", 2, "--steps", 4, "--threads", 1, "--dropout", 0,
                         "--checkpoint-every", 2, "--run-dir", folder / name, *arguments))


def train(folder, name, *arguments, ranks=1):
    training(folder, name, *arguments, ranks=ranks)
    return folder / name


@functools.cache
def shared_runs():
    """The same training on one rank and on two, which no test changes."""
    folder = make_folder(unittest)
    return train(folder, "one"), train(folder, "two", ranks=2)


def floats(data):
    return struct.unpack(f"<{len(data) // 4}f", data)


class Tools(FolderTest):
    @classmethod
    def setUpClass(cls):
        cls.one, cls.two = shared_runs()
        cls.final = final_model(cls.two)

    def copy(self, run_dir):
        return pathlib.Path(shutil.copytree(run_dir, self.folder / run_dir.name))

    def output(self, *arguments, status=0):
        result = tool(*arguments)
        self.assertEqual((result.returncode, result.stderr), (status, ""), result.stdout)
        return result.stdout

    def refused(self, status, *parts, arguments):
        assert_error(tool(*arguments), status, *parts)


class Reading(Tools):
    def test_list_names_checkpoints_newest_first_and_the_final_model(self):
        lines = self.output("list", self.two).splitlines()
        self.assertEqual([line.split()[0] for line in lines], ["step-4", "step-2", "final"])
        for line in lines[:2]:
            step = self.two / "checkpoints" / line.split()[0]
            size = sum(path.stat().st_size for path in step.glob("*.safetensors"))  # as the save's line has it
            self.assertEqual(line.split()[1:3], [f"{size / 1024:.1f}", "KiB"] if size < 2**20 else [f"{size / 2**20:.1f}", "MiB"])
            self.assertIn("2 ranks (pp 1, dp 2, tp 1)", line)

    def test_the_checkpoints_folder_resolves_to_its_run(self):
        self.assertEqual(self.output("list", self.two / "checkpoints"), self.output("list", self.two))
        self.assertEqual(self.output("inspect", self.two / "checkpoints"), self.output("inspect", self.two))

    def test_list_continues_after_a_damaged_manifest_and_names_it(self):
        copy = self.copy(self.two)
        manifest = copy / "checkpoints" / "step-4" / "manifest.json"
        manifest.write_bytes(manifest.read_bytes()[:-10])
        lines = self.output("list", copy).splitlines()
        self.assertEqual([line.split()[0] for line in lines], ["step-4", "step-2", "final"])
        self.assertIn(str(manifest), lines[0])
        self.assertIn("2 ranks", lines[1])

    def test_inspect_shows_fields_and_every_tensor_of_the_newest(self):
        text = self.output("inspect", self.two)
        for fact in (f"checkpoint {self.two}/checkpoints/step-4", "step       4", "samples    16", "tokens     256"):
            self.assertIn(fact, text)
        rows = {line.split()[0]: line for line in text.splitlines() if line.startswith(("model.", "optimizer."))}
        for name in SHAPES.keys() - {"attn.freqs"}:
            for prefix in ("model.", "optimizer.exp_avg.", "optimizer.exp_avg_sq."):
                self.assertIn(" F32 ", rows.pop(prefix + name))
        self.assertEqual(list(rows), ["optimizer.num_updates"])
        self.assertIn("step       2", self.output("inspect", self.two / "checkpoints" / "step-2"))

    def test_frozen_parameters_have_no_moments_until_they_are_trained(self):
        frozen = ("encoder", "lm_head")
        run_dirs = [train(self.folder, "single", "--freeze", ",".join(frozen)),
                    train(self.folder, "shards", "--freeze", ",".join(frozen), "--strategy", "fsdp", ranks=2)]
        moments = {f"optimizer.{moment}.{name}": name for moment in ("exp_avg", "exp_avg_sq") for name in SHAPES.keys() - {"attn.freqs"}}
        for run_dir in run_dirs:
            trained = {moment for moment, name in moments.items() if name not in frozen}
            for flags in ((), ("--freeze", "", "--resume", "auto", "--steps", 6)):
                if flags:
                    text = training(self.folder, run_dir.name, *flags).stderr
                    assert_names(text, "moments", *frozen)
                    trained = moments.keys()
                text = self.output("inspect", run_dir)
                found = {line.split()[0] for line in text.splitlines() if line.startswith("optimizer.exp")}
                self.assertEqual(found, set(trained))
        predicted = [next(iter(metrics_of(run_dir)))["memory_predicted_bytes"] for run_dir in (self.one, run_dirs[0])]
        elements = 256 + WIDTH * VOCAB  # of the encoder, up to a multiple of 64, and of the head
        self.assertEqual(predicted[0]["optimizer"] - predicted[1]["optimizer"], 2 * 4 * elements)

    def test_verify_counts_intact_files(self):
        files = list(self.two.rglob("*.safetensors"))
        size = sum(path.stat().st_size for path in files)
        self.assertEqual(self.output("verify", self.two), f"ok: {len(files)} files, {size} bytes, {32 + len(SHAPES)} tensors\n")
        for model in (self.final, self.final.parent, f"{self.final.parent}/", pathlib.Path(shutil.copytree(self.final.parent, self.folder / "copy"))):
            self.assertEqual(self.output("verify", model), f"ok: 1 file, {self.final.stat().st_size} bytes, {len(SHAPES)} tensors\n")
        self.assertIn("ok: 4 files", self.output("verify", self.two / "checkpoints" / "step-2"))

    def test_verify_refuses_a_file_of_a_checkpoint_and_names_the_checkpoint(self):
        step = self.copy(self.two) / "checkpoints" / "step-4"
        shard = next(step.glob("model-*.safetensors"))
        shard.write_bytes(shard.read_bytes()[:-1] + b"?")
        link = self.folder / "link.safetensors"
        link.symlink_to(shard)
        for path in (shard, link):
            self.refused(CHECKPOINT, path, f"verify {step.resolve()}", arguments=("verify", path))

    def test_verify_names_every_damaged_file_and_tensor(self):
        copy = self.copy(self.two)
        flipped, shorter = sorted((copy / "checkpoints" / "step-4").glob("*.safetensors"))[:2]
        missing = copy / "checkpoints" / "step-2" / "manifest.json"
        data = bytearray(flipped.read_bytes())
        data[-1] ^= 1
        flipped.write_bytes(data)
        older = copy / "checkpoints" / "step-2"
        self.refused(CHECKPOINT, flipped, "tensor", older, arguments=("export", copy, self.folder / "m"))
        self.assertNotIn(str(older), tool("export", flipped.parent, self.folder / "m", status=CHECKPOINT).stderr)
        self.assertFalse((self.folder / "m").exists())
        shorter.write_bytes(shorter.read_bytes()[:-1])
        missing.unlink()
        result = tool("verify", copy, status=CHECKPOINT)
        lines = result.stdout.splitlines()
        self.assertEqual(len(lines), 3, lines)
        self.assertRegex(lines[0], f"{flipped}.*'model.")
        self.assertIn(str(shorter), lines[1])
        self.assertIn(str(missing), lines[2])
        self.assertIn("3 files", result.stderr)

    def test_a_flipped_byte_of_a_model_file_is_detected_by_all_readers(self):
        data = self.final.read_bytes()
        file = self.folder / "model.safetensors"
        header = 8 + int.from_bytes(data[:8], "little")
        setting = data.index(b'dropout')  # in the metadata
        checksum = data.index(b"dtrain.checksum")
        for place in (setting + 10, checksum + 20, checksum + 30, header, (header + len(data)) // 2, len(data) - 1):
            damaged = bytearray(data)
            damaged[place] ^= 1
            file.write_bytes(damaged)
            with self.subTest(place - header):
                result = tool("verify", file, status=CHECKPOINT)
                self.assertIn(str(file), result.stdout)
        train_from = ("--init-from", file, "--data", self.folder / "text.txt", "--seq-len", 16, "--steps", 1, "--run-dir", self.folder / "new")
        (self.folder / "text.txt").write_text("In the beginning God created the heaven and the earth.\n" * 40)
        for words in (("generate", "--from", file), train_from, ("checkpoint", "import", file, self.folder / "imported")):
            self.assertRegex(run(DTRAIN, *words, status=CHECKPOINT).stderr, f"{file}' .*damaged.*dtrain.checksum")
        copy = self.copy(self.two)
        final_model(copy).write_bytes(damaged)
        result = tool("verify", copy)
        self.assertEqual((result.returncode, len(result.stdout.splitlines())), (CHECKPOINT, 1), result.stdout)
        write_model(file, *read_model(self.final))  # as others write it
        self.assertRegex(self.output("verify", file), "no checksums.*\nok: 1 file")
        run(DTRAIN, "generate", "--from", file, "--max-tokens", 1)

    def test_a_checksum_survives_a_rewrite_of_the_same_tensors(self):
        tensors, metadata = read_model(self.final)
        file = self.folder / "model.safetensors"
        backwards = dict(reversed(tensors.items()))
        write_model(file, backwards, dict(reversed(metadata.items())) | {"note": "xxh3 of nothing"}, keep_checksum=True)
        self.assertNotEqual(file.read_bytes(), self.final.read_bytes())
        self.assertTrue(self.output("verify", file).startswith("ok: 1 file"))
        run(DTRAIN, "generate", "--from", file, "--max-tokens", 1)
        dtype, shape, data = tensors["decoder"]
        for change in ({"decoder": (dtype, shape, data[4:] + data[:4])}, {"decoder": (dtype, shape[::-1], data)},
                       {"decoder": tensors["encoder"], "encoder": tensors["decoder"]}):
            write_model(file, tensors | change, metadata, keep_checksum=True)
            result = tool("verify", file, status=CHECKPOINT)
            self.assertIn("dtrain.checksum", result.stdout)
        write_model(file, tensors, metadata | {"other.checksum": metadata["dtrain.checksum"][:-1] + "g"})
        self.assertRegex(self.output("verify", file), "no checksums.*\nok: 1 file")

    def test_runs_of_one_and_two_ranks_are_equal_and_other_steps_are_not(self):
        self.assertEqual(self.output("diff", self.one, self.two), "equal: 16 tensors\n")
        text = self.output("diff", self.one, self.two / "checkpoints" / "step-2", status=DIFFERENT)
        self.assertRegex(text.splitlines()[0], r"^model.decoder .*\(\d+, \d+\)")
        assert_names(text.splitlines()[-1], "16 of 16")

    def test_a_path_that_is_not_a_run_or_checkpoint_is_rejected_by_name(self):
        empty = self.folder / "empty"
        empty.mkdir()
        for name in ("list", "inspect", "verify"):
            self.refused(CHECKPOINT, empty, "run folder", arguments=(name, empty))
            self.refused(CHECKPOINT, empty / "no", arguments=(name, empty / "no"))
            if name != "verify":
                self.refused(CHECKPOINT, self.final, arguments=(name, self.final))
        self.refused(CHECKPOINT, empty, arguments=("diff", self.one, empty))
        self.refused(USAGE, "B is required", arguments=("diff", self.one))
        self.refused(USAGE, "--steps", arguments=("inspect", self.one, "--steps"))
        self.refused(USAGE, "verify", arguments=("verfy", self.one))


class Converting(Tools):
    def test_an_export_is_the_file_that_the_run_wrote_at_its_end(self):
        for source in (self.one, self.two / "checkpoints" / "step-4"):
            file = self.folder / f"{source.name}.safetensors"
            self.assertIn("step 4", self.output("export", source, file))
            self.assertEqual(file.read_bytes(), self.final.read_bytes())

    def test_an_export_has_the_dtype_asked_for(self):
        weights, _ = read_model(self.final)
        for dtype, code in (("float64", "d"), ("float16", "e")):
            file = self.folder / dtype
            self.output("export", self.two, file, "--dtype", dtype)
            tensors, _ = read_model(file)
            for name, (_, shape, data) in tensors.items():
                values = floats(weights[name][2])
                if name != "attn.freqs":
                    self.assertEqual(data, struct.pack(f"<{len(values)}{code}", *values), name)
                self.assertEqual(shape, SHAPES[name])
        self.output("export", self.two, self.folder / "bf16", "--dtype", "bfloat16")
        for name, (dtype, _, data) in read_model(self.folder / "bf16")[0].items():
            if name == "attn.freqs":
                continue
            self.assertEqual(dtype, "BF16")
            widened = floats(b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2)))
            for found, value in zip(widened, floats(weights[name][2]), strict=True):
                self.assertLessEqual(abs(found - value), abs(value) / 256, name)

    def test_an_export_replaces_a_file_only_with_overwrite(self):
        file = self.folder / "m.safetensors"
        file.write_text("precious")
        self.refused(USAGE, file, "--overwrite", arguments=("export", self.one, file))
        self.assertEqual(file.read_text(), "precious")
        manifest = next(self.one.glob("checkpoints/*/manifest.json"))
        before = manifest.read_bytes()
        self.refused(USAGE, manifest, arguments=("export", self.one, manifest, "--overwrite"))
        self.assertEqual(manifest.read_bytes(), before)
        self.output("export", self.one, file, "--overwrite")
        self.assertEqual(file.read_bytes(), self.final.read_bytes())
        for flags in ((), ("--overwrite",)):
            result = tool("export", self.one, self.folder, *flags)
            assert_error(result, USAGE, self.folder, self.folder / "model.safetensors", "--format huggingface")
            self.assertNotIn("--overwrite", result.stderr)

    def test_an_export_is_not_named_after_another_format(self):
        self.refused(USAGE, "m.pt", "name it", "m.safetensors", arguments=("export", self.two, self.folder / "m.pt"))
        self.assertFalse((self.folder / "m.pt").exists())

    def test_an_import_of_an_export_holds_the_same_weights(self):
        self.output("import", self.final, self.folder / "imported")
        self.assertRegex(self.output("verify", self.folder / "imported"), "^ok: 1 file, .* 5 tensors")
        differences = self.output("diff", self.folder / "imported", self.two, status=DIFFERENT)
        assert_names(differences, "0 of 5")
        self.output("export", self.folder / "imported", self.folder / "again")
        self.assertEqual((self.folder / "again").read_bytes(), self.final.read_bytes())
        self.refused(USAGE, "exists", arguments=("import", self.final, self.folder / "imported"))

    def test_a_run_begins_with_imported_weights(self):
        self.output("import", self.final, self.folder / "imported")
        first = train(self.folder, "first", "--init-from", self.folder / "imported")
        second = train(self.folder, "second", "--init-from", self.final)
        self.assertEqual(self.output("diff", first, second), "equal: 16 tensors\n")
        self.output("diff", first, self.one, status=DIFFERENT)

    def test_the_references_files_need_the_number_of_levels(self):
        weights, _ = read_model(self.final)
        file = self.folder / "reference.safetensors"
        write_model(file, weights)
        self.refused(CHECKPOINT, file, "--layers", arguments=("import", file, self.folder / "c"))
        self.output("import", file, self.folder / "c", "--layers", LEVELS)
        self.output("export", self.folder / "c", self.folder / "again")
        tensors, metadata = read_model(self.folder / "again")
        self.assertEqual(tensors, weights)
        self.assertEqual(json.loads(metadata["dtrain.model"])["layers"], LEVELS)

    def test_files_in_our_own_shapes_need_levels_and_heads(self):
        weights = self.one / "checkpoints" / "step-4" / "model-00001-of-00001.safetensors"
        imported = self.folder / "imported"
        self.refused(CHECKPOINT, weights, "--heads", arguments=("import", weights, imported, "--layers", LEVELS))
        self.refused(USAGE, "--heads 3", arguments=("import", weights, imported, "--layers", LEVELS, "--heads", 3))
        self.output("import", weights, imported, "--layers", LEVELS, "--heads", HEADS)
        self.output("export", imported, self.folder / "again")
        self.assertEqual(read_model(self.folder / "again")[0], read_model(self.final)[0])

    def test_untied_levels_are_detected_by_name(self):
        untied = train(self.folder, "untied", "--tie-layers", "off") / "final" / "model.safetensors"
        weights, metadata = read_model(untied)
        file = self.folder / "names.safetensors"
        write_model(file, weights)
        self.output("import", file, self.folder / "c")
        self.output("export", self.folder / "c", self.folder / "again")
        tensors, found = read_model(self.folder / "again")
        self.assertEqual(tensors, weights)
        model = json.loads(metadata["dtrain.model"]) | {"dropout": 0.1}  # which no tensor shows
        self.assertEqual(json.loads(found["dtrain.model"]), model)

    def test_files_of_other_models_are_refused_and_nothing_is_left(self):
        weights, metadata = read_model(self.final)
        broken = self.folder / "broken"
        for change in ({"extra": ("F32", [1], b"\0" * 4)}, {"decoder": ("F32", [2, 2], b"\0" * 16)},
                       {"lm_head": ("I32", *weights["lm_head"][1:])}):
            write_model(broken, weights | change, metadata)
            self.refused(CHECKPOINT, broken, next(iter(change)), arguments=("import", broken, self.folder / "c"))
        write_model(broken, weights, {"dtrain.model": '{"width": 0}'})
        self.refused(CHECKPOINT, broken, "model.width", arguments=("import", broken, self.folder / "c"))
        self.refused(USAGE, "--layers 3", arguments=("import", self.final, self.folder / "c", "--layers", 3))
        self.assertEqual([path.name for path in self.folder.iterdir()], ["broken"])


if __name__ == "__main__":
    unittest.main()
