"""SmolLM2-135M-Instruct read, fine-tuned at several layouts and exported by dtrain; see scripts/soak/soak_hugging_face.py."""

import array
import pathlib
import shutil
import struct
import subprocess
import tempfile
import time

import torch
import transformers

import get_smollm2
import token_characters
from hugging_face_reference import Size, bits_differ, continue_greedily, load, tensors_in, write_reference
from hugging_face_verify import dtrain, verify
from runs import TEXT, digest_of, family, launched, metrics_of, program_of, steps_of

PROMPT = "The capital of France is"
GENERATED = 40  # tokens
NEAR_TIE = 1e-4  # logits so close that rounding may decide
LOSS_TOLERANCE = 1e-5  # relative, between layouts that agree to rounding
MIB = 2**20
PROGRAM = 120 * MIB  # what a rank takes without a model
VOCAB, WIDTH, PARAMETERS = 49152, 576, 134515008
LARGEST_TENSOR = 4 * VOCAB * WIDTH  # bytes, the embedding's
TRAINING = ("--steps", 30, "--seq-len", 64, "--global-batch", 2, "--microbatch", 1, "--lr", 1e-4, "--threads", 1, "--val-fraction", 0,
            "--sample-every", 0, "--log-every", 0, "--checkpoint-every", 0)
LAYOUTS = {"single": (1, ()), "ddp": (2, ("--strategy", "ddp")), "fsdp": (2, ("--strategy", "fsdp")),
           "tp": (3, ("--strategy", "tp")), "pp": (2, ("--strategy", "pp"))}
EQUAL_BITS = ("ddp", "fsdp")
IMPORTS = {"fsdp": (4, ("--strategy", "fsdp")), "tp": (3, ("--strategy", "tp", "--tp-vocab", "on"))}  # ranks hold equal parts


class Place:
    """The files of the campaign, in a folder of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.model = folder / "smollm2"
        self.imported = folder / "imported"
        self.exported = folder / "exported"
        self.data = folder / "text.dtok"
        self.tokenizer = None  # transformers'
        self.tokens = []  # of the text

    def prepare(self):
        """Writes the model and the tokens of a text, which dtrain must have read as they are."""
        get_smollm2.write_folder(self.model)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(self.model)
        self.tokens = self.tokenizer(TEXT.read_text())["input_ids"]
        (self.folder / "tokens.model").write_bytes(token_characters.tokenizer_model(VOCAB))
        (self.folder / "text.txt").write_text(token_characters.text_of(self.tokens))
        dtrain("data", "prepare", self.folder / "text.txt", "--tokenizer", self.folder / "tokens.model", "--output", self.data)
        if tokens_in(self.data) != self.tokens:
            raise RuntimeError(f"{self.data} has other tokens than {self.folder / 'text.txt'}")

    def run(self, name):
        return self.folder / "runs" / name


def tokens_in(path):
    """The tokens of a token file of version 3 with 2 bytes per token (docs/formats/tokens.md)."""
    content = path.read_bytes()
    count, = struct.unpack_from("<Q", content, 24)
    return array.array("H", content[104:104 + 2 * count]).tolist()


def held_memory(pid):
    """Bytes of memory that no file backs; 0 of a process that has ended."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


def peak_memory(ranks, words, is_over):
    """The highest memory of any dtrain process until is_over(), in bytes; raises RuntimeError where the command fails."""
    process = subprocess.Popen(launched(ranks, *words), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    peak = 0
    while process.poll() is None and not is_over():
        peak = max([peak, *(held_memory(pid) for pid in family(process.pid) if program_of(pid) == "dtrain")])
        time.sleep(0.002)
    message = process.communicate()[1]
    if process.returncode != 0:
        raise RuntimeError(f"dtrain {' '.join(map(str, words))}: status {process.returncode}: {message[-1000:]}")
    return peak


def check_peak(name, peak, part):
    """A rank may hold its part of the weights and one tensor besides."""
    most = PROGRAM + part + LARGEST_TENSOR
    print(f"smollm2: import, {name}: peak {peak / MIB:.0f} MiB of a rank; {most / MIB:.0f} MiB are promised", flush=True)
    return [f"import, {name}: a rank held {peak / MIB:.0f} MiB"] if peak > most else []


def check_import(place):
    """Memory of every way to import, and the bits of an export."""
    weights = 4 * PARAMETERS  # bytes
    peak = peak_memory(1, ("checkpoint", "import", place.model, place.imported), lambda: False)
    problems = check_peak("checkpoint import", peak, weights)
    for name, (ranks, layout) in IMPORTS.items():
        run = place.run(f"import-{name}")
        words = ("--init-from", place.model, "--data", place.data, "--run-dir", run, *TRAINING, "--steps", 1, "--seq-len", 16,
                 "--global-batch", ranks, "--optimizer", "sgd", "--momentum", 0, *layout)
        peak = peak_memory(ranks, words, lambda: bool(metrics_of(run)))  # until the first step
        problems += check_peak(f"{name} on {ranks} ranks", peak, weights // ranks)
        shutil.rmtree(run)
    again = place.folder / "again"
    dtrain("checkpoint", "export", place.imported, again, "--format", "huggingface")
    problems += [f"export of the import: {name} differs" for name in bits_differ(tensors_in(again), tensors_in(place.model))]
    shutil.rmtree(again)
    return problems


def check_layouts(place):
    """Fine-tunes at every layout and keeps the run of one process."""
    problems, losses, digests = [], {}, {}
    for name, (ranks, layout) in LAYOUTS.items():
        begin, run = time.monotonic(), place.run(name)
        start = place.imported if name == "ddp" else place.model
        dtrain("--init-from", start, "--data", place.data, "--run-dir", run, *TRAINING, *layout, ranks=ranks)
        losses[name] = [step["loss"] for step in steps_of(run)]
        digests[name] = digest_of(run)
        error = max(abs(ours - theirs) / theirs for ours, theirs in zip(losses[name], losses["single"], strict=True))
        print(f"smollm2: {name} on {ranks} ranks: loss {losses[name][0]:.4f} to {losses[name][-1]:.4f}, relative difference from one "
              f"process at most {error:.1e}, {time.monotonic() - begin:.0f} s", flush=True)
        if error > LOSS_TOLERANCE:
            problems.append(f"{name}: losses differ by {error:.2e}")
        if name in EQUAL_BITS and digests[name] != digests["single"]:
            problems.append(f"{name}: other bits than one process")
        if name != "single":
            shutil.rmtree(run)
    return problems


def check_generation(place):
    """Exports the run of one process, and compares the tokens that both programs generate."""
    dtrain("checkpoint", "export", place.run("single"), place.exported, "--format", "huggingface", "--dtype", "float32")
    prompt = place.tokenizer(PROMPT)["input_ids"]
    theirs, margins = continue_greedily(load(place.exported), prompt, GENERATED)
    (place.folder / "prompt.txt").write_text(token_characters.text_of(prompt))
    text = dtrain("generate", "--from", place.run("single"), "--prompt-file", place.folder / "prompt.txt", "--max-tokens", GENERATED,
                  "--temperature", 0, "--threads", 1)
    ours = token_characters.tokens_of(text)[len(prompt):]
    decided = next((i for i, margin in enumerate(margins) if margin < NEAR_TIE), GENERATED)
    print(f"smollm2: {decided} of {GENERATED} tokens before a near tie; transformers: {place.tokenizer.decode(theirs)!r}", flush=True)
    if ours[:decided] == theirs[:decided]:
        return []
    return [f"generation: transformers has the tokens {theirs}, dtrain {ours}"]


def check_logits(place):
    """Compares logits, gradients and a step of the exported folder."""
    reference = place.folder / "reference"
    write_reference(place.exported, torch.tensor(place.tokens), Size(steps=1, batch=2, length=64, generated=8), reference)
    problems, errors = verify(place.exported, reference, "float32", place.data)
    gradients = max(error for name, error in errors.items() if name.startswith("grad."))
    print(f"smollm2: logits {errors['logits']:.1e}, gradients {gradients:.1e} from transformers' (relative)", flush=True)
    return problems


def check():
    """The number of problems, which are printed."""
    problems = []
    with tempfile.TemporaryDirectory(prefix="dtrain-smollm2-") as folder:
        place = Place(pathlib.Path(folder))
        try:
            place.prepare()
            for part in (check_import, check_layouts, check_generation, check_logits):
                problems += part(place)
        except RuntimeError as error:  # what follows needs what failed
            problems.append(str(error))
    print("".join(f"smollm2: {problem}\n" for problem in problems) + f"smollm2: {len(problems)} problems", flush=True)
    return len(problems)


if __name__ == "__main__":
    raise SystemExit(min(check(), 1))
