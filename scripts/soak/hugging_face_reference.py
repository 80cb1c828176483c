"""Writes the results of transformers on a model in Hugging Face's format, as files that dtrain verify --huggingface reads
(tests/hf/README.md). RMSNorm and softmax are computed in the model's dtype, where transformers uses float32 always."""

import dataclasses
import importlib
import json

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

DTYPES = {"float32": ("fp32", torch.float32), "float64": ("fp64", torch.float64)}  # name -> key in meta.json, dtype
ADAMW = {"name": "adamw", "lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "grad_clip": 1.0}
NORMS = {"llama": "LlamaRMSNorm", "mistral": "MistralRMSNorm", "qwen2": "Qwen2RMSNorm", "qwen3": "Qwen3RMSNorm"}
NAME = "model"  # of the entry in meta.json
PROMPT = 8  # tokens


@dataclasses.dataclass(frozen=True)
class Size:
    steps: int
    batch: int
    length: int
    generated: int  # tokens after the prompt


def compute_in_own_dtype():
    """Replaces transformers' RMSNorm and PyTorch's softmax in this process; float32 results keep their bits."""
    softmax = torch.nn.functional.softmax

    def own_softmax(x, dim=None, dtype=None, **more):
        return softmax(x, dim=dim, dtype=None if x.dtype == torch.float64 else dtype, **more)

    def own_norm(self, x):
        wide = x if x.dtype == torch.float64 else x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)).to(x.dtype)

    torch.nn.functional.softmax = own_softmax
    for family, norm in NORMS.items():
        getattr(importlib.import_module(f"transformers.models.{family}.modeling_{family}"), norm).forward = own_norm


def load(folder, dtype=torch.float32):
    """The model, of which every key must be in the folder and used. Converted afterwards, so that RoPE's frequencies are
    those of float32."""
    model, report = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                         output_loading_info=True)
    if any(report.values()):
        raise RuntimeError(f"{folder}: transformers reports {report}")
    return model.to(dtype).eval()


def tensors_in(folder):
    """Name -> tensor of a folder, in one file or in shards."""
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def bits_differ(ours, theirs):
    """The names of tensors that are missing or differ in dtype, shape or a bit."""
    return sorted(name for name in {*ours, *theirs} if name not in ours or name not in theirs or
                  ours[name].dtype != theirs[name].dtype or not torch.equal(ours[name], theirs[name]))


def rows_at(tokens, offsets, length):
    """Inputs and targets (batch, length) of sequences that begin at the offsets."""
    return tuple(torch.stack([tokens[begin + shift:begin + shift + length] for begin in offsets]) for shift in (0, 1))


def forward(model, inputs, targets):
    logits = model(input_ids=inputs, use_cache=False).logits
    return logits, torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def logits_and_gradients(model, inputs, targets):
    logits, loss = forward(model, inputs, targets)
    loss.backward()
    gradients = {f"grad.{name}": parameter.grad for name, parameter in model.named_parameters()}
    return {"logits": logits.detach().contiguous(), **gradients}


def train(model, batches):
    """Losses and gradient norms of AdamW's steps, before each update."""
    optimizer = torch.optim.AdamW(model.parameters(), **{key: ADAMW[key] for key in ("lr", "betas", "eps", "weight_decay")})
    losses, norms = [], []
    for inputs, targets in batches:
        optimizer.zero_grad()
        _, loss = forward(model, inputs, targets)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), ADAMW["grad_clip"]).item())
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "grad_norms": norms}


@torch.no_grad()
def continue_greedily(model, prompt, count):
    """(the likeliest tokens after a prompt, the distance of the two best logits at each)."""
    tokens, margins = list(prompt), []
    for _ in range(count):
        best = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1].topk(2)
        tokens.append(best.indices[0].item())
        margins.append((best.values[0] - best.values[1]).item())
    return tokens[len(prompt):], margins


def own_errors(reference):
    """Tensor name -> how far transformers' float32 values are from its float64 ones, relative to the largest."""
    narrow, wide = (load_file(reference / f"{dtype}.safetensors") for dtype in DTYPES)
    return {name: ((narrow[name] - value).abs().max() / value.abs().max()).item() for name, value in wide.items()}


def write_reference(model, tokens, size, out):
    """Writes out/meta.json, and logits and gradients to out/DTYPE.safetensors, of the model in a folder. tokens: (n) int64."""
    out.mkdir()
    offsets = [torch.randint(len(tokens) - size.length, (size.batch,)).tolist() for _ in range(size.steps)]
    batches = [rows_at(tokens, begins, size.length) for begins in offsets]
    prompt = batches[0][0][0, :PROMPT].tolist()
    entry = {"offsets": offsets, "greedy_prompt": prompt}
    for name, (key, dtype) in DTYPES.items():
        network = load(model, dtype)
        save_file(logits_and_gradients(network, *batches[0]), out / f"{name}.safetensors")
        entry[key] = train(network, batches)
        if dtype == torch.float32:
            entry["greedy_after_training"] = prompt + continue_greedily(network, prompt, size.generated)[0]
    meta = {"steps": size.steps, "batch": size.batch, "length": size.length, "optimizer": ADAMW, "models": {NAME: entry}}
    (out / "meta.json").write_text(json.dumps(meta))
