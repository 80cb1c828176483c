"""Random small models that transformers writes, read, trained and exported by dtrain; see scripts/soak/soak_hugging_face.py."""

import json
import pathlib
import random
import tempfile

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from hugging_face_reference import DTYPES as REFERENCE_DTYPES
from hugging_face_reference import Size, bits_differ, load, tensors_in, write_reference
from hugging_face_verify import dtrain, verify
from runs import TEXT

CONFIGS = {"llama": LlamaConfig, "mistral": MistralConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
ROPES = ("default", "linear", "llama3")
DTYPES = ("float32", "bfloat16", "float16")


def random_rope(kind):
    rope = {"rope_type": kind, "rope_theta": random.choice((500.0, 10000.0, 500000.0, 1e6))}
    if kind != "default":
        rope["factor"] = random.choice((1.5, 4.0, 8.0))
    if kind == "llama3":
        low = random.choice((1.0, 2.0))
        rope |= {"low_freq_factor": low, "high_freq_factor": 4 * low, "original_max_position_embeddings": random.choice((8, 16, 32))}
    return rope


def random_config(family, rope):
    """A configuration of transformers; sizes are rarely multiples of anything."""
    kv_heads, head_dim = random.randint(1, 3), 2 * random.randint(2, 10)
    heads = kv_heads * random.randint(1, 3)
    keys = {"vocab_size": random.choice((256, 257, random.randint(256, 400))), "intermediate_size": random.randint(10, 120),
            "num_hidden_layers": random.randint(1, 4), "num_attention_heads": heads, "num_key_value_heads": kv_heads,
            "hidden_size": heads * head_dim, "rms_norm_eps": random.choice((1e-5, 1e-6)), "max_position_embeddings": 128,
            "tie_word_embeddings": random.random() < 0.5, "initializer_range": random.choice((0.02, 0.1)),
            "attention_dropout": 0.0, "bos_token_id": None, "eos_token_id": None, "rope_parameters": random_rope(rope)}
    if family == "llama":
        keys["attention_bias"] = random.random() < 0.3
    if family == "mistral":
        keys["sliding_window"] = None
    if family == "qwen3" or (family != "qwen2" and random.random() < 0.5):
        keys |= {"head_dim": head_dim, "hidden_size": heads * random.randint(2, 12)}
    return CONFIGS[family](**keys)


def use_keys_of_version_4(folder):
    """Writes config.json as transformers 4 did."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=2))


def write_random_model(folder, family, rope):
    """Writes a model in one of several dtypes, in one file or in shards; returns what it is, as text."""
    torch.manual_seed(random.randrange(2**31))
    config, dtype = random_config(family, rope), random.choice(DTYPES)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms and biases away from 1 and 0, so that a missing one changes the results
                parameter += 0.1 * torch.randn(parameter.shape)
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=random.choice(("20KB", "10MB")))
    is_old = random.random() < 0.5
    if is_old:
        use_keys_of_version_4(folder)
    described = {key: value for key, value in config.to_diff_dict().items() if key not in ("model_type", "transformers_version")}
    return f"{family}, {dtype}, keys of version {4 if is_old else 5}, {described}"


def check_export(model, folder):
    """Exports an import; returns what differs from the model."""
    config = json.loads((model / "config.json").read_text())
    exported = folder / "exported"
    dtrain("checkpoint", "import", model, folder / "imported")
    dtrain("checkpoint", "export", folder / "imported", exported, "--format", "huggingface", "--dtype",
           config.get("dtype") or config["torch_dtype"], "--shard-size", random.choice(("20kB", "5GB")))
    problems = [f"export: {name} differs" for name in bits_differ(tensors_in(exported), tensors_in(model))]
    inputs = torch.randint(config["vocab_size"], (2, 60))
    with torch.no_grad():
        ours, theirs = (load(each)(input_ids=inputs).logits for each in (exported, model))
    return problems if torch.equal(ours, theirs) else [*problems, "export: transformers computes other logits"]


def random_layout(model):
    """(number of ranks, flags) that suit the sizes of a model."""
    config = json.loads((model / "config.json").read_text())
    layouts = [(2, ("--strategy", "ddp")), (4, ("--strategy", "fsdp")), (2, ("--strategy", "zero", "--zero-stage", 3))]
    layouts += [(stages, ("--strategy", "pp")) for stages in (2, 4) if stages <= config["num_hidden_layers"]]
    layouts += [(ranks, ("--strategy", "tp", "--tp-vocab", "off" if config["vocab_size"] % ranks else "on")) for ranks in (2, 3)
                if config["num_attention_heads"] % ranks == 0 and config["intermediate_size"] % ranks == 0]
    return random.choice(layouts)


def check_model(model, folder):
    """Returns what differs."""
    reference = folder / "reference"
    write_reference(model, torch.tensor(list(TEXT.read_bytes())), Size(steps=12, batch=4, length=40, generated=24), reference)
    problems = check_export(model, folder)
    for dtype in REFERENCE_DTYPES:
        problems += verify(model, reference, dtype, TEXT)[0]
        problems += verify(model, reference, dtype, TEXT, *random_layout(model))[0]
    return problems


def check(count):
    """The number of models with problems, which are printed."""
    kinds = [(family, rope) for rope in ROPES for family in CONFIGS]
    bad = 0
    for number in range(count):
        with tempfile.TemporaryDirectory(prefix="dtrain-hf-") as name:
            folder = pathlib.Path(name)
            described = write_random_model(folder / "model", *kinds[number % len(kinds)])
            try:
                problems = check_model(folder / "model", folder)
            except RuntimeError as error:
                problems = [str(error)]
        if problems:
            bad += 1
            print(f"model {number}: {described}\n  " + "\n  ".join(problems), flush=True)
    return bad
