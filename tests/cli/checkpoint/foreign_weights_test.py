"""Weights as other programs save them: what torch.save and save_file make of the reference's module, whole or in shards."""

import json
import shutil
import struct
import unittest
import zipfile

from dtrain_harness import CHECKPOINT, DTRAIN, PYTHON, SOURCE, FolderTest, launched, make_folder, run
from messages import assert_error, assert_names
from safetensors_file import read_model, write_model

LEVELS, WIDTH, HEADS, NEURONS, VOCAB = 2, 6, 2, 4, 256
SIZES = ("--layers", LEVELS, "--width", WIDTH, "--heads", HEADS, "--neurons", NEURONS)

# Writes each file with PyTorch into the folder; `plain` are the weights of all that can be read.
WRITER = f"""
import argparse, bz2, gzip, json, lzma, os, pickle, sys, tarfile
import numpy, torch
import torch.distributed.checkpoint as checkpoint
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
os.chdir(sys.argv[1])
torch.manual_seed(1)

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        freqs = 1 / 65536 ** (torch.arange({NEURONS}).div(2, rounding_mode="floor") * 2 / {NEURONS}) / (2 * torch.pi)
        self.register_buffer("freqs", freqs.view(1, 1, 1, -1))

class Bdh(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding({VOCAB}, {WIDTH})
        self.attn = Attention()
        for name, shape in (("encoder", ({HEADS}, {WIDTH}, {NEURONS})), ("encoder_v", ({HEADS}, {WIDTH}, {NEURONS})),
                            ("decoder", ({HEADS * NEURONS}, {WIDTH})), ("lm_head", ({WIDTH}, {VOCAB}))):
            setattr(self, name, nn.Parameter(torch.randn(shape)))

model = Bdh()
plain = dict(model.state_dict())
save_file(plain, "plain.safetensors")

sum(p.sum() for p in model.parameters()).backward()
optimizer = torch.optim.AdamW(model.parameters(), lr=0)
optimizer.step()
names = {{("attns.0.freqs" if name == "attn.freqs" else name): value for name, value in plain.items()}}
wrapped = {{"module._orig_mod." + name: value for name, value in names.items()}}
torch.save({{"model": wrapped | {{"_orig_mod.lm_gate": torch.ones({WIDTH}, 1)}}, "optimizer": optimizer.state_dict(),
            "rng": torch.get_rng_state(), "step": 3}}, "script.pt")

both = torch.stack((plain["encoder"], plain["encoder_v"]))
views = plain | {{"encoder": both[0], "encoder_v": both[1], "decoder": plain["decoder"].T.contiguous().T}}
torch.save({{"model": {{"width": {WIDTH}}}, "state_dict": {{"model." + name: value for name, value in views.items()}},
            "hyper_parameters": argparse.Namespace(width={WIDTH}, rate=0.5),
            "pytorch-lightning_version": "2.5", "callbacks": {{}}}}, "lightning.ckpt", pickle_protocol=4)

averaged = torch.optim.swa_utils.AveragedModel(model.double())
torch.save(averaged.state_dict(keep_vars=True), "parameters.pt")
torch.save({{"_orig_mod." + name: value.float() for name, value in averaged.state_dict().items()}}, "averaged.pt")
model.float()
save_file({{"net." + name: value.bfloat16() for name, value in plain.items()}}, "narrow.safetensors", {{"format": "pt"}})

for folder, suffix, save in (("shards", "model.safetensors", save_file), ("bins", "pytorch_model.bin", torch.save)):
    os.mkdir(folder)
    stem, end = suffix.rsplit(".", 1)
    weight_map = {{}}
    for i, keys in enumerate((["encoder", "decoder"], [name for name in plain if name not in ("encoder", "decoder")])):
        shard = f"{{stem}}-0000{{i + 1}}-of-00002.{{end}}"
        save({{key: plain[key] for key in keys}}, f"{{folder}}/{{shard}}")
        weight_map |= dict.fromkeys(keys, shard)
    with open(f"{{folder}}/{{suffix}}.index.json", "w") as file:
        json.dump({{"metadata": {{"total_size": 1}}, "weight_map": weight_map}}, file)

torch.save(model, "module.pt")
torch.save({{"model": model}}, "module_inside.pt")
torch.jit.save(torch.jit.trace(nn.Identity(), torch.ones(1)), "script_module.pt")
torch.save(plain, "old.pt", _use_new_zipfile_serialization=False)
# As the refusals of these advise:
torch.save(torch.load("module_inside.pt", weights_only=False)["model"].state_dict(), "inside.pt")
torch.save(torch.load("old.pt", map_location="cpu"), "new.pt")
checkpoint.save({{"model": plain}}, checkpoint_id="distributed", no_dist=True)
dcp_to_torch_save("distributed", "whole.pt")
torch.save({{"state_dict": plain, "loss": torch.tensor(1.5), "decoder": plain["decoder"] + 1,
            "average": {{"decoder": plain["decoder"]}}, "optimizer": optimizer.state_dict()}}, "beside.ckpt")
torch.save({{"model": plain | {{"decoder": plain["decoder"].tolist()}}}}, "list.pt")
torch.save(plain | {{5: plain["decoder"]}}, "number.pt")
torch.save({{}}, "empty.pt")
torch.save(plain | {{"decoder": plain["decoder"].to(torch.complex64)}}, "complex.pt")
torch.save(plain | {{"decoder": plain["decoder"].to(torch.float8_e4m3fn)}}, "eight.pt")
save_file(plain | {{"decoder": plain["decoder"].to(torch.float8_e4m3fn)}}, "eight.safetensors")
save_file(plain | {{"encoder": plain["encoder"].mT.contiguous()}}, "turned.safetensors")
numpy.save("decoder.npy", plain["decoder"].numpy())
with tarfile.open("plain.tar", "w") as archive:
    archive.add("plain.safetensors")
for module in (gzip, bz2, lzma):
    with module.open(f"{{module.__name__}}.pt", "wb") as file, open("plain.safetensors", "rb") as plain_file:
        file.write(plain_file.read())
torch.save({{"model": plain, "state_dict": plain}}, "two.pt")
torch.save({{"optimizer": optimizer.state_dict(), "step": 3}}, "none.pt")
torch.save(plain | {{"decoder": plain["decoder"].to_sparse()}}, "sparse.pt")
torch.save(plain | {{"module.decoder": plain["decoder"]}}, "twice.pt")
torch.save(plain | {{"decoder": plain["decoder"].T}}, "transposed.pt")
torch.save(plain | {{"decoder": plain["decoder"].index_fill(0, torch.tensor(3), float("nan"))}}, "nan.pt")
torch.save({{"transformer.wte.weight": plain["embed.weight"], "transformer.h.0.ln_1.bias": torch.ones(2)}}, "gpt2.pt")
torch.serialization.set_crc32_options(False)
torch.save(plain, "unchecked.pt")
with open("pickle.bin", "wb") as file:
    pickle.dump({{"decoder": list(range(100))}}, file)
"""


def tool(*arguments, status=0):
    return run(DTRAIN, "checkpoint", *arguments, status=status)


class ForeignWeights(FolderTest):
    @classmethod
    def setUpClass(cls):
        cls.files = make_folder(cls)
        run(PYTHON, "-c", WRITER, cls.files)
        cls.plain = cls.files / "imported"
        tool("import", cls.files / "plain.safetensors", cls.plain, "--layers", LEVELS)

    def read(self, file):
        """What an import writes on standard error; its weights are those of `plain`."""
        folder = self.folder / "imported"
        shutil.rmtree(folder, ignore_errors=True)
        result = tool("import", file, folder, "--layers", LEVELS)
        return folder, result.stderr

    def assert_same(self, file, *notes):
        folder, written = self.read(self.files / file)
        self.assertTrue(tool("diff", folder, self.plain).stdout.startswith("equal"))
        assert_names(written, file, *notes) if notes else self.assertEqual(written, "")

    def assert_refused(self, file, *names, status=CHECKPOINT):
        folder = self.folder / "refused"
        assert_error(tool("import", file, folder, "--layers", LEVELS, status=None), status, file, *names)
        self.assertFalse(folder.exists())

    def test_a_training_scripts_checkpoint_of_a_compiled_parallel_model(self):
        self.assert_same("script.pt", "'model'", "module.", "_orig_mod.", "lm_gate", "attns.0.freqs")

    def test_lightnings_checkpoint_of_views_of_shared_storage(self):
        self.assert_same("lightning.ckpt", "'state_dict'", "'model.'")

    def test_a_transformer_in_a_wrapper_is_told_from_the_file_of_a_checkpoint(self):
        for name in ("qwen2", "gpt2"):  # a checkpoint has transposed matrices of a GPT-2
            source = shutil.copytree(SOURCE / "tests" / "hf" / name, self.folder / name)
            file = source / "model.safetensors"
            tensors, _ = read_model(file)
            write_model(file, {f"model.{key}": tensor for key, tensor in tensors.items()})
            for kind in ("wrapped", "saved"):
                imported, exported = self.folder / f"{name}-{kind}", self.folder / f"{name}-{kind}.safetensors"
                tool("import", source, imported)
                tool("export", imported, exported)
                self.assertEqual(read_model(exported)[0], tensors)
                shutil.copy(imported / "model-00001-of-00001.safetensors", file)

    def test_tensors_beside_the_weights_are_named(self):
        self.assert_same("beside.ckpt", "'state_dict'", "loss", "decoder", "average")

    def test_parameters_of_float64_keep_their_precision(self):
        folder, written = self.read(self.files / "parameters.pt")
        assert_names(written, "n_averaged", "module.")
        tool("export", folder, self.folder / "wide.safetensors")
        wide, _ = read_model(self.folder / "wide.safetensors")
        plain, _ = read_model(self.files / "plain.safetensors")
        for name in ("decoder", "encoder", "embed.weight"):
            count = len(plain[name][2]) // 4
            self.assertEqual(wide[name][0], "F64")
            self.assertEqual(struct.unpack(f"<{count}d", wide[name][2]), struct.unpack(f"<{count}f", plain[name][2]))

    def test_an_average_within_a_compiled_model_is_read(self):
        self.assert_same("averaged.pt", "n_averaged", "_orig_mod.", "module.")

    def test_bfloat16_rounds_the_frequencies_too(self):
        folder, written = self.read(self.files / "narrow.safetensors")
        assert_names(written, "'net.'")
        tool("export", folder, self.folder / "rounded.safetensors")
        rounded, _ = read_model(self.folder / "rounded.safetensors")
        narrow, _ = read_model(self.files / "narrow.safetensors")
        for name in ("decoder", "encoder", "embed.weight"):
            halves = narrow["net." + name][2]
            # A float32 whose lower half is zero.
            widened = b"".join(b"\0\0" + halves[i:i + 2] for i in range(0, len(halves), 2))
            self.assertEqual(rounded[name][2], widened)

    def test_shards_and_their_folder(self):
        self.assert_same("shards/model.safetensors.index.json")
        self.assert_same("bins")
        self.assertTrue(tool("verify", self.files / "bins").stdout.splitlines()[-1].startswith("ok: 1 file"))
        for folder, name in (("shards", "model.safetensors.index.json"), ("bins", "pytorch_model.bin.index.json")):
            words = ("train", "--resume", self.files / folder)
            assert_names(run(DTRAIN, *words, status=CHECKPOINT).stderr, "--init-from", self.files / folder / name)
        result = run(DTRAIN, "generate", "--from", self.files / "shards", "--from-layers", LEVELS, "--max-tokens", 1)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)  # the memory

    def test_a_shard_is_no_model_nor_is_a_folder_of_shards_without_an_index(self):
        text = self.write("text.txt", "In the beginning God created the heaven and the earth.\n" * 40)
        train = ("train", "--data", text, "--run-dir", self.folder / "run", "--init-from")
        loose = self.folder / "loose"
        loose.mkdir()
        for name in ("shards/model-00001-of-00002.safetensors", "bins/pytorch_model-00001-of-00002.bin"):
            shard = self.files / name
            for words in (("generate", "--from", shard), (*train, shard), ("checkpoint", "import", shard, self.folder / "c")):
                error = run(DTRAIN, *words, status=CHECKPOINT).stderr
                assert_names(error, f"'{shard}'", 2, shard.parent)
                self.assertNotIn("embed.weight", error)
            shutil.copy(shard, loose)
        for words in ((*train, loose), ("generate", "--from", loose)):
            assert_names(run(DTRAIN, *words, status=CHECKPOINT).stderr, words[-2], loose, "Hugging Face", "config.json")

    def test_a_folder_named_like_a_checkpoint_holds_a_model(self):
        folder = shutil.copytree(self.files / "shards", self.folder / "step-1000")
        run(DTRAIN, "generate", "--from", folder, "--from-layers", LEVELS, "--max-tokens", 1)
        text = self.write("text.txt", "In the beginning God created the heaven and the earth.\n" * 40)
        run(DTRAIN, "train", *SIZES, "--data", text, "--seq-len", 16, "--microbatch", 2, "--steps", 1, "--threads", 1,
            "--init-from", folder, "--run-dir", self.folder / "step-5")
        run(DTRAIN, "generate", "--from", self.folder / "step-5", "--max-tokens", 1)
        (folder / "model.safetensors.index.json").unlink()
        result = run(DTRAIN, "generate", "--from", folder, "--max-tokens", 1, status=CHECKPOINT)
        assert_names(result.stderr, folder / "manifest.json")

    def test_an_index_of_shards_needs_them_all(self):
        shards = shutil.copytree(self.files / "shards", self.folder / "shards")
        index = shards / "model.safetensors.index.json"
        (shards / "model-00002-of-00002.safetensors").unlink()
        missing = "model-00002-of-00002.safetensors"
        assert_error(tool("import", index, self.folder / "c", status=None), CHECKPOINT, missing)
        self.assert_refused(self.write("empty.index.json", '{"weight_map": {}}'), "weight_map")
        self.assert_refused(self.write("cut.index.json", '{"weight_map": {'), "17")
        (shards / missing).write_bytes((shards / "model-00001-of-00002.safetensors").read_bytes())
        index.write_text(json.dumps({"weight_map": {"encoder": missing, "decoder": "model-00001-of-00002.safetensors"}}))
        result = tool("import", index, self.folder / "c", status=CHECKPOINT)
        self.assertEqual(sum(result.stderr.count(f"'{name}'") for name in ("decoder", "encoder")), 1)
        for name, shard in (("extra", "model-00001-of-00002.safetensors"), ("decoder", "../shards/x"), ("decoder", index.name)):
            index.write_text(json.dumps({"weight_map": {"encoder": "model-00001-of-00002.safetensors", name: shard}}))
            self.assert_refused(index, f"'{name}'")

    def test_a_run_begins_with_such_a_file_as_with_the_plain_one(self):
        text = self.write("text.txt", "In the beginning God created the heaven and the earth.\n" * 40)
        start = ("train", *SIZES, "--data", text, "--seq-len", 16, "--microbatch", 2, "--steps", 1, "--threads", 1,
                 "--checkpoint-every", 1)
        for name in ("plain.safetensors", "script.pt"):
            result = run(DTRAIN, *start, "--init-from", self.files / name, "--run-dir", self.folder / name)
            self.assertEqual("lm_gate" in result.stderr, name == "script.pt")
        runs = (self.folder / name for name in ("plain.safetensors", "script.pt"))
        self.assertTrue(tool("diff", *runs).stdout.startswith("equal"))
        for name, tensor in (("nan.pt", "model.decoder"), ("transposed.pt", "decoder")):
            words = (*start, "--init-from", self.files / name, "--run-dir", self.folder / "refused")
            result = run(DTRAIN, *words, status=CHECKPOINT)
            assert_names(result.stderr, self.files / name, f"'{tensor}'")
        for words in (("generate", "--max-tokens", 1), ("evaluate", "--data", text, "--seq-len", 16)):
            result = run(DTRAIN, *words, "--from", self.files / "nan.pt", "--from-layers", LEVELS, status=CHECKPOINT)
            assert_names(result.stderr, self.files / "nan.pt", "'model.decoder'")
        # The rows of the decoder are split, so that the NaN is in the share of one rank.
        ranks = launched(2, *start, "--strategy", "fsdp", "--init-from", self.files / "nan.pt", "--run-dir", self.folder / "shares")
        assert_names(run(*ranks, status=CHECKPOINT).stderr, self.files / "nan.pt", "'model.decoder'")
        other = run(DTRAIN, *start, "--vocab", 300, "--init-from", self.files / "script.pt", "--run-dir", self.folder / "r",
                    status=CHECKPOINT)
        assert_names(other.stderr, "'embed.weight'", "256, 6", "300, 6", "dtrain checkpoint import")

    def test_files_without_weights_are_rejected_with_advice(self):
        for name, *names in (("module.pt", "__main__ Bdh", "state_dict"), ("module_inside.pt", "__main__ Bdh", "'model'"),
                             ("script_module.pt", "torch.jit.load"), ("old.pt", "1.6", "torch.load"),
                             ("two.pt", "'model'", "'state_dict'"), ("none.pt", "optimizer"), ("sparse.pt", "'decoder'"),
                             ("twice.pt", "'decoder'", "'module.decoder'"), ("pickle.bin", "state_dict"),
                             ("transposed.pt", "'decoder'", "transposed"), ("nan.pt", "'model.decoder'"), ("gpt2.pt", "bdh"), ("number.pt", "5"), ("list.pt", "'model'", "decoder"), ("complex.pt", "'decoder'", "torch ComplexFloatStorage"),
                             ("eight.pt", "'decoder'", "torch._utils _rebuild_tensor_v3"), ("eight.safetensors", "'decoder'", "F8_E4M3", "BF16"),
                             ("turned.safetensors", "'encoder'", "2, 4, 6"), ("empty.pt", "state_dict"), ("distributed", "dcp_to_torch")):
            with self.subTest(name):
                self.assert_refused(self.files / name, *names)

    def test_files_of_other_formats_are_named_by_theirs(self):
        for name, word in (("gzip.pt", "decompress"), ("bz2.pt", "decompress"), ("lzma.pt", "decompress"), ("plain.tar", "unpack"),
                           ("decoder.npy", "NumPy")):
            with self.subTest(name):
                self.assert_refused(self.files / name, word)
        result = tool("import", self.write("bare.safetensors", struct.pack("<Q", 8) + b"{}      "), self.folder / "c", status=CHECKPOINT)
        assert_names(result.stderr, "bare.safetensors")
        self.assertNotIn("''", result.stderr)

    def test_what_was_refused_is_read_once_it_is_saved_as_advised(self):
        for name in ("new.pt", "inside.pt", "whole.pt"):
            self.assert_same(name, *(["'model'"] if name == "whole.pt" else []))

    def test_damaged_and_foreign_archives_are_refused(self):
        whole = (self.files / "script.pt").read_bytes()
        for share in (0.02, 0.5, 0.999):
            self.assert_refused(self.write("cut.pt", whole[:int(len(whole) * share)]))
        with zipfile.ZipFile(self.files / "script.pt") as archive:
            entries = {entry.filename: archive.read(entry) for entry in archive.infolist()}
        pickles = {name: content for name, content in entries.items() if name.endswith("data.pkl")}
        ((pickle_name, content),) = pickles.items()
        for changes, compression, name in (
                ({}, zipfile.ZIP_DEFLATED, "data.pkl"), ({"script/byteorder": b"big"}, zipfile.ZIP_STORED, "big-endian"),
                ({pickle_name: content[:-9]}, zipfile.ZIP_STORED, "pickle"),
                ({"script/data/0": b"short"}, zipfile.ZIP_STORED, "'module._orig_mod"),
                ({pickle_name: b"\x80\x02cos\nsystem\nX\x04\0\0\0true\x85R."}, zipfile.ZIP_STORED, "os system")):
            with zipfile.ZipFile(self.folder / "changed.pt", "w", compression) as archive:
                for entry, data in (entries | changes).items():
                    archive.writestr(entry, data)
            result = tool("import", self.folder / "changed.pt", self.folder / "c", status=None)
            assert_error(result, CHECKPOINT, "changed.pt")
            self.assertIn(name, result.stderr)
        with zipfile.ZipFile(self.folder / "arrays.npz", "w") as archive:
            archive.writestr("decoder.npy", b"0")
        self.assert_refused(self.folder / "arrays.npz", "data.pkl")
        self.assert_refused(self.write("joined.pt", whole + whole))
        at = whole.index(b"_orig_mod.encoder")
        self.assert_refused(self.write("letter.pt", whole[:at] + b"^" + whole[at + 1:]), "script/data.pkl")
        pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
        self.assert_refused(self.write("pointer.safetensors", pointer), "Git LFS")
        self.assert_refused(self.write("m.gguf", b"GGUF" + bytes(99)), "GGUF")

    def test_a_changed_byte_of_a_weight_is_found_by_the_archives_checksum(self):
        damaged = bytearray((self.files / "script.pt").read_bytes())
        with zipfile.ZipFile(self.files / "script.pt") as archive:
            entry = max(archive.infolist(), key=lambda each: each.file_size)
        damaged[entry.header_offset + 300] ^= 1  # beyond the header, which fills up to a multiple of 64 bytes
        path = self.write("damaged.pt", bytes(damaged))
        self.assert_refused(path, entry.filename)
        result = tool("verify", path, status=CHECKPOINT)
        assert_names(result.stdout, path, entry.filename)
        self.assertEqual(len(tool("verify", self.files / "script.pt").stdout.splitlines()), 1)
        self.assert_same("unchecked.pt")
        note, end = tool("verify", self.files / "unchecked.pt").stdout.splitlines()
        assert_names(note, "unchecked.pt")
        self.assertTrue(end.startswith("ok: 1 file"))

    def test_wrappers_are_left_out_of_names_of_safetensors_too(self):
        tensors, _ = read_model(self.files / "plain.safetensors")
        names = {"module.embed._orig_mod.weight": tensors["embed.weight"]}
        names |= {f"_orig_mod.module.{name}": value for name, value in tensors.items() if name != "embed.weight"}
        write_model(self.folder / "wrapped.safetensors", names)
        folder, written = self.read(self.folder / "wrapped.safetensors")
        assert_names(written, "module.", "_orig_mod.")
        self.assertTrue(tool("diff", folder, self.plain).stdout.startswith("equal"))
        names["freqs"] = ("F32", [NEURONS], bytes(4 * NEURONS))
        write_model(self.folder / "merged.safetensors", names)
        self.assert_refused(self.folder / "merged.safetensors", "'freqs'")


if __name__ == "__main__":
    unittest.main()
