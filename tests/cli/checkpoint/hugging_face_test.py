"""Folders in Hugging Face's format: read by import, --init-from and --from, and written by export --format huggingface."""

import functools
import json
import shutil
import struct
import unittest

from dtrain_harness import CHECKPOINT, CONSTANT_RATE, DATA, DTRAIN, GOLDEN, PYTHON, SOURCE, USAGE, FolderTest, final_model, launched, make_folder, metrics_of, run
from messages import assert_names, error_line
from safetensors_file import read_model, write_model

FIXTURES = SOURCE / "tests" / "hf"
NAMES = ("llama", "llama3_tied", "qwen2", "qwen3", "gpt2")
HUGGING_FACE = ("--format", "huggingface")
TOKENIZER = json.loads((GOLDEN / "tokenizers" / "variants.json").read_text())["base"]
BDH = ("--layers", 2, "--width", 12, "--heads", 2, "--neurons", 10)
BDH_FILES = ("configuration_bdh.py", "modeling_bdh.py")
TEXT = "In the beginning God created the heaven and the earth.\n" * 40
STEPS = ("--seq-len", 16, "--global-batch", 4, "--steps", 2, "--threads", 1, *CONSTANT_RATE, "--checkpoint-every", 0)

# Loads exported BDH folders as transformers would, which is not installed here, and prints for each the largest difference from a
# fixture's logits over the largest logit.
BDH_LOGITS = """
import importlib, json, pathlib, sys, types
import torch
from safetensors.torch import load_file
class Configuration:
    def __init__(self, **keys):
        vars(self).update(keys)
class Model(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
    def post_init(self):
        pass
def module(name, **members):
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(members)
module("transformers", PretrainedConfig=Configuration, PreTrainedModel=Model, GenerationMixin=object)
module("transformers.modeling_outputs", CausalLMOutput=types.SimpleNamespace)
expected = load_file(sys.argv[1])
for folder in map(pathlib.Path, sys.argv[2:]):
    sys.path.insert(0, str(folder.parent))
    module_in_folder = importlib.import_module(folder.name + ".modeling_bdh")
    model = module_in_folder.BdhForCausalLM(module_in_folder.BdhConfig(**json.loads((folder / "config.json").read_text())))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    logits = model.eval()(expected["inputs"]).logits
    print(float((logits - expected["logits"]).abs().max() / expected["logits"].abs().max()))
"""


def tensors_in(folder):
    """Names -> (dtype, shape, bytes) of a folder, whole or in shards."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return read_model(folder / "model.safetensors")[0]
    found = {}
    for name, file in json.loads(index.read_text())["weight_map"].items():
        found[name] = read_model(folder / file)[0][name]
    return found


def narrowed(tensors, dtype):
    """The values of F32 tensors, rounded to nearest or for BF16 towards zero."""
    def convert(data):
        if dtype == "BF16":
            return b"".join(data[i + 2:i + 4] for i in range(0, len(data), 4))
        count = len(data) // 4
        return struct.pack(f"<{count}e", *struct.unpack(f"<{count}f", data))
    return {name: (dtype, shape, convert(data)) for name, (_, shape, data) in tensors.items()}


@functools.cache
def imported_fixture(name):
    """A fixture's checkpoint; tests do not modify it."""
    checkpoint = make_folder(unittest) / "checkpoint"
    run(DTRAIN, "checkpoint", "import", FIXTURES / name, checkpoint)
    return checkpoint


@functools.cache
def losses_of_one_rank(name):
    """Losses of two steps from a fixture's folder."""
    folder = make_folder(unittest)
    (folder / "text.txt").write_text(TEXT)
    run(DTRAIN, "--data", folder / "text.txt", *STEPS, "--run-dir", folder / "run", "--init-from", FIXTURES / name)
    return [line["loss"] for line in metrics_of(folder / "run") if "loss" in line]


class HuggingFace(FolderTest):
    def fixture(self, name, tensors=None, **keys):
        """A copy of a fixture in one file; with other tensors, and other keys in its config.json."""
        folder = self.folder / f"{name}-{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        config = json.loads((FIXTURES / name / "config.json").read_text()) | keys
        (folder / "config.json").write_text(json.dumps(config))
        write_model(folder / "model.safetensors", tensors or tensors_in(FIXTURES / name), {"format": "pt"})
        return folder

    def tool(self, *arguments, status=0):
        return run(DTRAIN, "checkpoint", *arguments, status=status)

    def imported(self, folder):
        checkpoint = self.folder / f"imported-{folder.name}"
        self.tool("import", folder, checkpoint)
        return checkpoint

    def exported(self, checkpoint, *flags):
        folder = self.folder / f"exported-{len(list(self.folder.iterdir()))}"
        self.tool("export", checkpoint, folder, *HUGGING_FACE, *flags)
        return folder

    def text(self):
        return self.write("text.txt", TEXT)

    def train(self, name, *flags, data=None, ranks=1, status=0):
        return run(*launched(ranks, "--data", data or self.text(), *STEPS, "--run-dir", self.folder / name, *flags), status=status)

    def losses(self, name):
        return [line["loss"] for line in metrics_of(self.folder / name) if "loss" in line]


class InAndOut(HuggingFace):
    def test_an_export_of_an_import_has_equal_bits_and_settings(self):
        for name in NAMES:
            with self.subTest(name):
                folder = self.exported(imported_fixture(name))
                self.assertEqual(tensors_in(folder), tensors_in(FIXTURES / name))
                self.assertEqual(sorted(path.name for path in folder.iterdir()),
                                 ["config.json", "generation_config.json", "model.safetensors"])
                ours, theirs = (json.loads((each / "config.json").read_text()) for each in (folder, FIXTURES / name))
                for key in ("transformers_version", "layer_types", "max_window_layers", "pad_token_id"):
                    theirs.pop(key, None)
                theirs = {key: value for key, value in theirs.items() if not key.startswith("summary_")}
                self.assertEqual({key: ours[key] for key in theirs}, theirs)
                self.assertEqual(read_model(folder / "model.safetensors")[1]["format"], "pt")

    def test_narrow_files_are_read_exactly_and_written_on_request(self):
        for dtype, ours in (("BF16", "bfloat16"), ("F16", "float16")):
            narrow = narrowed(tensors_in(FIXTURES / "qwen2"), dtype)
            checkpoint = self.imported(self.fixture("qwen2", narrow))
            folder = self.exported(checkpoint, "--dtype", ours)
            self.assertEqual(tensors_in(folder), narrow)
            config = json.loads((folder / "config.json").read_text())
            self.assertEqual((config["dtype"], config["torch_dtype"]), (ours, ours))
        self.assertEqual({dtype for dtype, _, _ in tensors_in(self.exported(checkpoint)).values()}, {"F32"})

    def test_shards_have_an_index_and_are_read_again(self):
        checkpoint = imported_fixture("qwen3")
        folder = self.exported(checkpoint, "--shard-size", "60kB")
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        expected = tensors_in(FIXTURES / "qwen3")
        self.assertEqual(index["weight_map"].keys(), expected.keys())
        self.assertEqual(index["metadata"]["total_size"], sum(len(data) for _, _, data in expected.values()))
        files = sorted(set(index["weight_map"].values()))
        self.assertGreater(len(files), 2)
        self.assertEqual(files, [f"model-{i + 1:05}-of-{len(files):05}.safetensors" for i in range(len(files))])
        for file in files:
            tensors, metadata = read_model(folder / file)
            self.assertEqual(metadata["format"], "pt")
            self.assertTrue(len(tensors) == 1 or sum(len(data) for _, _, data in tensors.values()) <= 60000)
        self.assertEqual(tensors_in(self.exported(self.imported(folder), "--shard-size", 0)), expected)
        narrow = self.exported(checkpoint, "--shard-size", "60kB", "--dtype", "bfloat16")
        total = json.loads((narrow / "model.safetensors.index.json").read_text())["metadata"]["total_size"]
        self.assertEqual(2 * total, index["metadata"]["total_size"])
        self.assertEqual({read_model(file)[1]["format"] for file in narrow.glob("*.safetensors")}, {"pt"})

    def test_files_of_torch_are_read(self):
        source = self.fixture("llama3_tied")
        program = ("import pathlib, sys, torch\nfrom safetensors.torch import load_file\n"
                   "folder = pathlib.Path(sys.argv[1])\nweights = load_file(folder / 'model.safetensors')\n"
                   "weights['lm_head.weight'] = weights['model.embed_tokens.weight']\n"
                   "torch.save(weights, folder / 'pytorch_model.bin')\n")
        run(PYTHON, "-c", program, source)
        (source / "model.safetensors").unlink()
        self.assertEqual(tensors_in(self.exported(self.imported(source))), tensors_in(FIXTURES / "llama3_tied"))

    def test_other_kinds_of_models_keep_their_settings(self):
        linear = self.fixture("llama", rope_parameters=None, rope_theta=20000.0, rope_scaling={"type": "linear", "factor": 4.0})
        config = json.loads((self.exported(self.imported(linear)) / "config.json").read_text())
        self.assertEqual(config["rope_parameters"], {"rope_type": "linear", "factor": 4, "rope_theta": 20000})
        mistral = self.fixture("llama", model_type="mistral", sliding_window=None)
        folder = self.exported(self.imported(mistral))
        self.assertEqual(tensors_in(folder), tensors_in(FIXTURES / "llama"))


class Tensors(HuggingFace):
    def test_a_repeated_head_of_a_tied_model_is_left_out(self):
        tensors = tensors_in(FIXTURES / "qwen2")
        repeated = tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]}
        source = self.fixture("qwen2", repeated)
        result = self.tool("import", source, self.folder / "checkpoint")
        assert_names(result.stderr, "lm_head.weight")
        self.assertEqual(tensors_in(self.exported(self.folder / "checkpoint")), tensors)

    def test_another_head_of_a_tied_model_is_refused(self):
        tensors = tensors_in(FIXTURES / "qwen2")
        dtype, shape, data = tensors["model.embed_tokens.weight"]
        source = self.fixture("qwen2", tensors | {"lm_head.weight": (dtype, shape, data[:-4] + struct.pack("<f", 7))})
        for words in (("checkpoint", "import", source, self.folder / "checkpoint"), ("generate", "--max-tokens", 8, "--from", source)):
            self.refused(words, "lm_head.weight", "model.embed_tokens.weight", status=CHECKPOINT)

    def test_a_base_model_is_loaded_if_its_embeddings_are_tied(self):
        tensors = tensors_in(FIXTURES / "qwen2")
        base = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
        source = self.fixture("qwen2", base, architectures=["Qwen2Model"])
        self.assertEqual(tensors_in(self.exported(self.imported(source))), tensors)

    def test_a_base_model_without_the_head_that_it_needs_is_refused(self):
        base = {name.removeprefix("model."): tensor for name, tensor in tensors_in(FIXTURES / "llama").items() if name != "lm_head.weight"}
        source = self.fixture("llama", base, architectures=["LlamaModel"])
        for words in (("checkpoint", "import", source, self.folder / "checkpoint"), ("generate", "--max-tokens", 8, "--from", source)):
            self.refused(words, source / "model.safetensors", "lm_head.weight", status=CHECKPOINT)

    def test_frequencies_of_older_files_are_ignored(self):
        tensors = tensors_in(FIXTURES / "llama")
        frequencies = ("F32", [4], struct.pack("<4f", 1, 2, 3, 4))
        older = tensors | {"model.layers.1.self_attn.rotary_emb.inv_freq": frequencies, "model.rotary_emb.inv_freq": frequencies}
        self.assertEqual(tensors_in(self.exported(self.imported(self.fixture("llama", older)))), tensors)

    def test_older_files_of_gpt2_lack_a_prefix_and_hold_masks(self):
        tensors = tensors_in(FIXTURES / "gpt2")
        older = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
        older |= {"h.1.attn.bias": ("U8", [1, 1, 4, 4], bytes(16)), "h.1.attn.masked_bias": ("F32", [1], struct.pack("<f", -1e4))}
        keys = {"n_ctx": 128, "n_positions": 128, "torch_dtype": "float32"}
        self.assertEqual(tensors_in(self.exported(self.imported(self.fixture("gpt2", older, **keys)))), tensors)

    def test_an_untied_gpt2_has_its_own_head(self):
        tensors = tensors_in(FIXTURES / "gpt2")
        dtype, shape, data = tensors["transformer.wte.weight"]
        untied = tensors | {"lm_head.weight": (dtype, shape, data[:-4] + struct.pack("<f", 7))}
        folder = self.exported(self.imported(self.fixture("gpt2", untied, tie_word_embeddings=False)))
        self.assertEqual(tensors_in(folder), untied)
        self.assertFalse(json.loads((folder / "config.json").read_text())["tie_word_embeddings"])

    def test_a_gpt2_without_biases_is_written_as_a_model_file_alone(self):
        self.train("run", "--model", "gpt2", "--layers", 1, "--width", 12, "--heads", 2, "--learned-positions", 16, "--biases", "off")
        self.refused(("checkpoint", "export", self.folder / "run", self.folder / "out", *HUGGING_FACE), "--biases off")
        self.tool("export", self.folder / "run", self.folder / "model.safetensors")
        tensors = read_model(self.folder / "model.safetensors")[0]
        self.assertEqual(tensors, read_model(final_model(self.folder / "run"))[0])
        self.assertEqual(tensors["transformer.h.0.attn.c_attn.weight"][1], [12, 36])
        self.assertFalse([name for name in tensors if name.endswith("bias")])
        model = json.loads((self.folder / "run/config.json").read_text())["model"]
        self.assertEqual(set(model), {"name", "layers", "width", "heads", "vocab", "dropout", "inner_size", "learned_positions",
                                      "layer_norm_eps", "biases", "tie_head", "weight_std"})
        self.assertEqual((model["name"], model["learned_positions"], model["biases"]), ("gpt2", 16, False))

    def test_tensors_that_are_missing_unknown_or_misshapen_are_refused_by_name(self):
        tensors = tensors_in(FIXTURES / "llama")
        missing = {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}
        unknown = tensors | {"model.layers.0.self_attn.q_proj.bias": ("F32", [48], bytes(192))}
        for source, name in ((self.fixture("llama", missing), "lm_head.weight"),
                             (self.fixture("llama", unknown), "model.layers.0.self_attn.q_proj.bias"),
                             (self.fixture("llama", num_key_value_heads=3), "model.layers.0.self_attn.k_proj.weight")):
            self.refused(("checkpoint", "import", source, self.folder / "checkpoint"), name, status=CHECKPOINT)


class Training(HuggingFace):
    def test_the_architecture_comes_from_the_folder(self):
        for name in NAMES:
            with self.subTest(name):
                self.train(f"imported-run-{name}", "--init-from", imported_fixture(name))
                self.assertEqual(losses_of_one_rank(name), self.losses(f"imported-run-{name}"))
                self.assertEqual(len(losses_of_one_rank(name)), 2)

    def test_ranks_read_their_parts(self):
        for name, strategy in (("qwen3", "fsdp"), ("qwen3", "tp"), ("gpt2", "tp")):
            run_name = f"{strategy}-{name}"
            self.train(run_name, "--init-from", FIXTURES / name, "--strategy", strategy, ranks=2)
            self.assertEqual(len(self.losses(run_name)), 2)
            for ours, theirs in zip(self.losses(run_name), losses_of_one_rank(name)):
                self.assertAlmostEqual(ours, theirs, delta=1e-4)

    def test_ranks_with_parts_of_other_sizes_export_what_they_trained(self):
        # Three ranks divide neither the MLP of 112 columns nor the vocabulary of 256.
        self.train("thirds", "--init-from", FIXTURES / "llama", "--strategy", "tp", "--tp-vocab", "on", ranks=3)
        for ours, theirs in zip(self.losses("thirds"), losses_of_one_rank("llama"), strict=True):
            self.assertAlmostEqual(ours, theirs, delta=1e-4)
        final = read_model(final_model(self.folder / "thirds"))[0]
        self.assertEqual(tensors_in(self.exported(self.folder / "thirds")), final)
        self.assertEqual({name: tensor[1] for name, tensor in final.items()},
                         {name: tensor[1] for name, tensor in tensors_in(FIXTURES / "llama").items()})

    def test_flags_that_contradict_the_folder_are_refused(self):
        text = self.write("text.txt", "In the beginning " * 40)
        words = ("--data", text, "--run-dir", self.folder / "run", "--init-from", FIXTURES / "llama")
        for flag, ours, theirs in (("--kv-heads", 3, 2), ("--rope-theta", 500, 10000), ("--layers", 3, 2), ("--model", "bdh", "llama")):
            self.refused((*words, flag, ours), flag, ours, theirs)

    def test_flags_may_give_sizes_that_the_folder_leaves_out(self):
        llama = self.fixture("llama", head_dim=None, num_key_value_heads=None)
        for source, flag, derived, other in ((FIXTURES / "gpt2", "--inner-size", 192, 96), (llama, "--head-dim", 8, 16),
                                             (llama, "--kv-heads", 6, 3)):
            words = ("--print-config", "--init-from", source, flag)
            key = flag.strip("-").replace("-", "_")
            self.assertEqual(json.loads(run(DTRAIN, *words, derived).stdout)["model"][key], derived)
            self.refused((*words, other), flag, other, derived)

    def test_data_with_more_tokens_than_the_weights_is_refused_with_the_tokenizer_to_use(self):
        source = self.fixture("llama")
        (source / "tokenizer.json").write_text(json.dumps(TOKENIZER))
        tokens = self.prepared(source)
        for data in (("--data", tokens), ("--data", self.text(), "--val-data", tokens)):
            for weights in (source, source / "model.safetensors"):
                self.refused((*data, "--run-dir", self.folder / "run", "--init-from", weights), f"--init-from {weights}", 256, 400, tokens,
                             source / "tokenizer.json", status=DATA, without=("--vocab",))
        result = run(DTRAIN, "evaluate", "--data", tokens, "--from", source, status=DATA)
        error_line(result.stderr, f"--from {source}", 256, 400, tokens, source / "tokenizer.json")

    def test_a_trained_llama_is_exported(self):
        self.train("run", "--init-from", FIXTURES / "llama3_tied")
        folder = self.exported(self.folder / "run")
        final = read_model(final_model(self.folder / "run"))[0]
        self.assertEqual(tensors_in(folder), final)
        self.assertNotEqual(final, tensors_in(FIXTURES / "llama3_tied"))
        self.assertEqual({name: tensor[1] for name, tensor in final.items()},
                         {name: tensor[1] for name, tensor in tensors_in(FIXTURES / "llama3_tied").items()})

    def files_beside_weights(self, run):
        """Names -> content of a run's export, without weights."""
        return {path.name: path.read_text() for path in self.exported(self.folder / run).iterdir() if path.suffix != ".safetensors"}

    def folder_with_tokenizer(self, **keys):
        """A copy of a fixture whose vocabulary is that of the tokenizer.json beside it."""
        tensors = tensors_in(FIXTURES / "llama3_tied")
        vocab = len(TOKENIZER["model"]["vocab"])
        dtype, (rows, width), embeddings = tensors["model.embed_tokens.weight"]
        tensors["model.embed_tokens.weight"] = (dtype, [vocab, width], embeddings + embeddings[:(vocab - rows) * width * 4])
        folder = self.fixture("llama3_tied", tensors, vocab_size=vocab, **keys)
        (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
        return folder

    def prepared(self, source):
        """Tokens of a folder's tokenizer."""
        run(DTRAIN, "data", "prepare", self.text(), "--tokenizer", source, "--output", self.folder / "tokens.dtok")
        return self.folder / "tokens.dtok"

    def test_exports_of_a_run_keep_token_ids_and_tokenizer_of_the_folder_it_started_from(self):
        ids = {"bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": 4}
        source = self.folder_with_tokenizer(**ids)
        # Data without tokens between documents may come from this tokenizer, too.
        kept = {"tokenizer_config.json": json.dumps({"eos_token": TOKENIZER["added_tokens"][0]["content"]}),
                "special_tokens_map.json": "[]", "added_tokens.json": '{"<a>": 9}', "vocab.json": '{"a": 0}',
                "merges.txt": "a b", "tokenizer.model": "pieces", "chat_template.jinja": "{{ messages }}",
                "generation_config.json": '{"eos_token_id": [2, 3, 5], "top_p": 0.9}'}
        for name, content in (kept | {"README.md": "not kept"}).items():
            (source / name).write_text(content)
        kept["tokenizer.json"] = (source / "tokenizer.json").read_text()
        tokens = self.prepared(source)
        result = self.train("bytes", "--init-from", source)
        assert_names(result.stderr, "warning", "--init-from", "tokenizer.json", "xxh3", "bytes")
        self.assertNotIn("warning", self.train("first", "--init-from", source, "--strategy", "fsdp", data=tokens, ranks=2).stderr)
        shutil.rmtree(source)
        self.train("second", "--init-from", self.folder / "first", data=tokens)
        self.train("third", "--resume", self.folder / "second", "--steps", 3, data=tokens)
        for run_name in ("first", "second", "third"):
            files = self.files_beside_weights(run_name)
            config = json.loads(files.pop("config.json"))
            self.assertEqual({key: config[key] for key in ids}, ids)
            self.assertEqual(files, kept)
        run(DTRAIN, "generate", "--prompt", "In", "--max-tokens", 1, "--from", self.exported(self.folder / "first"))

        files = self.files_beside_weights("bytes")
        self.assertEqual(files.keys(), {"config.json", "generation_config.json"})
        for text in files.values():
            self.assertEqual({key: json.loads(text)[key] for key in ids}, dict.fromkeys(ids))
        self.train("second", "--init-from", FIXTURES / "llama", "--overwrite")
        self.assertEqual(self.files_beside_weights("second").keys(), {"config.json", "generation_config.json"})

    def test_data_of_the_folders_tokenizer_model_brings_no_warning(self):
        source = self.folder_with_tokenizer()
        model = source / "tokenizer.model"
        run(DTRAIN, "data", "tokenizer", "train", self.text(), "--vocab-size", 300, "--output", model)
        result = run(DTRAIN, "evaluate", "--data", self.prepared(model), "--seq-len", 16, "--eval-sequences", 8, "--from", source)
        self.assertNotIn("xxh3", result.stderr)

    def test_generate_and_evaluate_read_a_folder(self):
        text = self.text()
        again = self.exported(imported_fixture("qwen2"))
        for command in (("generate", "--prompt", "In", "--temperature", 0),
                        ("evaluate", "--data", text, "--seq-len", 16, "--eval-sequences", 8)):
            outputs = {run(DTRAIN, *command, "--from", model).stdout for model in (FIXTURES / "qwen2", again)}
            self.assertEqual(len(outputs), 1, outputs)
        (again / "tokenizer.json").write_text("{}")
        result = run(DTRAIN, "evaluate", "--data", text, "--seq-len", 200, "--from", again)
        assert_names(result.stderr, "warning", "--from", again / "tokenizer.json", "xxh3", "text.txt", "bytes")
        assert_names(result.stderr, "warning", "--seq-len", 200, "--max-positions", 128)


class Bdh(HuggingFace):
    def test_an_export_has_the_weights_of_the_run_and_the_model_in_python(self):
        for ties in ("on", "off"):
            with self.subTest(ties):
                self.train(f"run-{ties}", *BDH, "--tie-layers", ties)
                folder = self.exported(self.folder / f"run-{ties}")
                final = read_model(final_model(self.folder / f"run-{ties}"))[0]
                final.pop("attn.freqs")
                self.assertEqual(tensors_in(folder), final)
                self.assertEqual(sorted(path.name for path in folder.iterdir()),
                                 ["config.json", BDH_FILES[0], "generation_config.json", "model.safetensors", BDH_FILES[1]])
                for file in BDH_FILES:
                    self.assertEqual((folder / file).read_bytes(), (SOURCE / "lib" / "dtrain" / "config" / "bdh" / file).read_bytes())
                again = self.exported(self.imported(folder), "--shard-size", "4kB")
                self.assertTrue((again / "model.safetensors.index.json").exists())
                self.assertEqual(tensors_in(again), final)
                self.assertEqual((again / "config.json").read_bytes(), (folder / "config.json").read_bytes())

    def test_training_and_generation_take_a_folder_as_they_take_the_final_model(self):
        self.train("run", *BDH)
        sources = (final_model(self.folder / "run"), self.exported(self.folder / "run"))
        for i, source in enumerate(sources):
            self.train(f"tuned-{i}", "--init-from", source)
        self.assertEqual(self.losses("tuned-0"), self.losses("tuned-1"))
        self.assertEqual(len(self.losses("tuned-0")), 2)
        texts = [run(DTRAIN, "generate", "--prompt", "In", "--max-tokens", 8, "--temperature", 0, "--from", source, text=False, errors=None).stdout
                 for source in sources]
        self.assertEqual(texts[0], texts[1])
        text = self.write("text.txt", "In the beginning " * 40)
        words = ("--data", text, "--run-dir", self.folder / "other", "--init-from", sources[1])
        for flag, ours, theirs in (("--neurons", 12, 10), ("--tie-layers", "off", "on"), ("--model", "llama", "bdh")):
            self.refused((*words, flag, ours), flag, ours, theirs)

    def test_the_model_in_python_computes_the_logits_of_the_reference(self):
        fixture = GOLDEN / "three_heads.safetensors"
        tied = {name.removeprefix("weight."): tensor for name, tensor in read_model(fixture)[0].items() if name.startswith("weight.")}
        matrices = ("encoder", "encoder_v", "decoder")
        untied = {name: tensor for name, tensor in tied.items() if name not in matrices}
        untied |= {f"levels.{level}.{name}": tied[name] for level in range(3) for name in matrices}
        folders = []
        for name, weights in (("tied", tied), ("untied", untied)):
            write_model(self.folder / f"{name}.safetensors", weights)
            self.tool("import", self.folder / f"{name}.safetensors", self.folder / name, "--layers", 3)
            folders.append(self.exported(self.folder / name))
        for error in run(PYTHON, "-c", BDH_LOGITS, fixture, *folders).stdout.split():
            self.assertLess(float(error), 1e-5)

    def test_a_config_of_another_bdh_is_refused_by_every_command(self):
        write_model(self.folder / "model.safetensors", {"encoder": ("F32", [1, 2, 2], bytes(16))}, {"format": "pt"})
        self.write("config.json", json.dumps({"model_type": "bdh", "n_layer": 2}))
        text = self.write("text.txt", "In the beginning " * 40)
        for words in (("checkpoint", "import", self.folder, self.folder / "checkpoint"), ("generate", "--max-tokens", 8, "--from", self.folder),
                      ("--data", text, "--run-dir", self.folder / "run", "--init-from", self.folder)):
            self.refused(words, self.folder / "config.json", "num_hidden_layers", status=CHECKPOINT)


class Refusals(HuggingFace):
    def test_arithmetic_that_dtrain_lacks_is_refused_by_every_command(self):
        source = self.fixture("llama", rope_parameters={"rope_type": "yarn", "factor": 2.0, "rope_theta": 10000.0})
        text = self.write("text.txt", "In the beginning " * 40)
        for words in (("checkpoint", "import", source, self.folder / "checkpoint"), ("generate", "--max-tokens", 8, "--from", source),
                      ("--data", text, "--run-dir", self.folder / "run", "--init-from", source), ("plan", "--init-from", source),
                      ("doctor", "--init-from", source)):
            self.refused(words, source / "config.json", "rope_parameters.rope_type", "yarn", status=CHECKPOINT)
        self.assertFalse((self.folder / "checkpoint").exists())

    def test_weights_without_their_config_are_refused(self):
        source = self.fixture("llama")
        (source / "config.json").unlink()
        missing = source / "config.json"
        for words in (("checkpoint", "import", source, self.folder / "checkpoint"), ("generate", "--max-tokens", 8, "--from", source)):
            self.refused(words, missing, "llama", status=CHECKPOINT)
        result = self.train("run", "--init-from", source, status=CHECKPOINT)
        self.assertNotIn("q_proj", error_line(result.stderr, missing, "llama"))

    def test_weights_without_their_config_that_do_not_fit_the_flags_are_refused_by_tensor(self):
        source = self.fixture("llama")
        (source / "config.json").unlink()
        missing = source / "config.json"
        sizes = ("--model", "llama", "--layers", 2, "--width", 48, "--heads", 6, "--intermediate-size", 112, "--kv-heads")
        result = self.train("run", "--init-from", source, *sizes, 3, status=CHECKPOINT)
        error_line(result.stderr, "model.layers.0.self_attn.k_proj.weight", missing, "llama")
        tensors = tensors_in(source)
        _, shape, data = tensors["model.norm.weight"]
        write_model(source / "model.safetensors", tensors | {"model.norm.weight": ("I32", shape, data)}, {"format": "pt"})
        result = self.train("run", "--init-from", source, *sizes, 2, status=CHECKPOINT)
        error_line(result.stderr, "model.norm.weight", "I32")

    def test_an_existing_folder_is_never_replaced(self):
        checkpoint = imported_fixture("llama")
        taken = self.folder / "taken"
        taken.mkdir()
        for flags in ((), ("--overwrite",)):
            self.refused(("checkpoint", "export", checkpoint, taken, *HUGGING_FACE, *flags), taken)
        self.assertEqual(list(taken.iterdir()), [])

    def test_a_failed_export_leaves_nothing(self):
        tensors = tensors_in(FIXTURES / "llama")
        dtype, shape, data = tensors["model.norm.weight"]
        large = tensors | {"model.norm.weight": (dtype, shape, struct.pack("<f", 1e6) + data[4:])}
        checkpoint = self.imported(self.fixture("llama", large))
        before = sorted(self.folder.iterdir())
        self.refused(("checkpoint", "export", checkpoint, self.folder / "out", *HUGGING_FACE, "--dtype", "float16"),
                     "model.model.norm.weight", status=CHECKPOINT)
        self.assertEqual(sorted(self.folder.iterdir()), before)


if __name__ == "__main__":
    unittest.main()
