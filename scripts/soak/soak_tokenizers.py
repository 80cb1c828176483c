"""soak_tokenizers.py BUILD [MINUTES] [SEED]: `dtrain data prepare` with random tokenizer.json files gives random texts the tokens
that the package tokenizers gives them, and rejects no supported file. Status 0 if nothing differs, 77 in a Python without
tokenizers (0.23).
"""

import copy
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

try:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
except ImportError:
    print("SKIPPED: this Python has no package tokenizers")
    sys.exit(77)

SOURCE = pathlib.Path(__file__).resolve().parents[2]
os.environ.update(DTRAIN_SOURCE_DIR=str(SOURCE), DTRAIN_BINARY_DIR=os.path.abspath(sys.argv[1]))
sys.path[:0] = [str(SOURCE / "tests/cli"), str(SOURCE / "tests/golden/tokenizers")]
from data_harness import read_token_file  # noqa: E402
from generate import LLAMA3, byte_level, sequence, split, token  # noqa: E402

O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|"
         r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
PATTERNS = (LLAMA3, LLAMA3.replace("{1,3}", ""), O200K, r"\p{N}{1,3}", r"[\u4e00-\u9fff\u3040-\u30ff]+", r"\s+", r"\S+|\s+", r"[a-z]+(?=[A-Z])|x*",
            r"\p{L}++|.", r"[^\p{P}\p{S}]+?(?=\p{P})", r"(?i:dr?|ka)|\d\d", r"(?>a|ab)c?|[\s\S]")
BEHAVIORS = ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
BLOCKS = ((0x20, 0x7E), (0x20, 0x7E), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0xDFF), (0x1100, 0x11FF),
          (0x1AB0, 0x1AFF), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2150, 0x218F), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3),
          (0xF900, 0xFFEF), (0x10D40, 0x10D8F), (0x11000, 0x119FF), (0x1CC00, 0x1CCFF), (0x1F1E6, 0x1F64F), (0x20000, 0x2A6DF),
          (0x2EBF0, 0x323AF), (0xE0000, 0xE01FF), (0, 0x10FFFF))
SPACES = (" ", "  ", "\t", "\n", "\n\n", "\r\n", "\u00a0", "\u2003", "\u3000", "\u200b", "\ufeff", "\u2028", "\u0085", "\u180e", "\u001f")
PIECES = ("it's", "WE'LL", "don'T", "'\u017f", "'S", "'\u212a", "e\u0301", "\u0301", "\u0327", "\u3099", "\u304b\u3099", "\u1100\u1161\u11a8", "1234567",
          "\u00bd\u00b2", "\u2167", "\u0663\u0664", "--", "<|end|>", "<|end", "\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd", "xxxxxxxxxxxxxxxx")
# Not beginning or ending with white space: after a token that strips it, the package panics.
NAMES = ("<a>", "<ab>", "<a", "word", "\u00e9", "e\u0301", "two x", "'s", "\u65e5", "the", "12")


def character(chance):
    low, high = chance.choice(BLOCKS)
    number = chance.randint(low, high)
    return "x" if 0xD800 <= number < 0xE000 or number == 0 else chr(number)


def random_text(chance, real, length):
    text = ""
    while len(text) < length:
        kind = chance.randrange(5)
        if kind == 0:
            begin = chance.randrange(len(real) - 200)
            text += real[begin:begin + chance.randrange(200)]
        elif kind == 1:
            text += "".join(chance.choice(SPACES) for _ in range(chance.randrange(4)))
        elif kind == 2:
            low, high = chance.choice(BLOCKS[:-1])
            text += "".join(chr(chance.randint(max(low, 1), high)) for _ in range(chance.randrange(12)))
        elif kind == 3:
            text += chance.choice(PIECES + NAMES) * chance.randrange(3)
        else:
            text += "".join(character(chance) for _ in range(chance.randrange(8)))
    return text


def trained(chance, real):
    """A tokenizer.json with a small vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    lines = [real, *(random_text(chance, real, 2000) for _ in range(50))]
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=1200, special_tokens=["<|end|>"], show_progress=False,
                                                            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    whole = json.loads(tokenizer.to_str())
    whole["decoder"] = byte_level()
    return whole


def random_pre_tokenizer(chance):
    flip = lambda: chance.random() < 0.5  # noqa: E731
    steps = []
    if chance.random() < 0.4:
        steps.append({"type": "Digits", "individual_digits": flip()})
    for _ in range(chance.choice((0, 0, 1, 1, 1, 2, 3))):
        behavior = "Isolated" if flip() else chance.choice(BEHAVIORS)
        if chance.random() < 0.2:
            steps.append(split(chance.choice((" ", "-", "'s", ".")), behavior, flip(), kind="String"))
        else:
            steps.append(split(chance.choice(PATTERNS), behavior, chance.random() < 0.2))
    return sequence(*steps, byte_level(prefix=chance.random() < 0.3, regex=not steps or flip()))


def random_tokenizer(chance, base):
    whole = copy.deepcopy(base)
    whole["pre_tokenizer"] = random_pre_tokenizer(chance)
    whole["normalizer"] = chance.choice((None, {"type": "NFC"}))
    whole["model"]["ignore_merges"] = chance.random() < 0.3
    vocab = whole["model"]["vocab"]
    number = len(vocab)
    if chance.random() < 0.3:  # a gap in the vocabulary
        begin, gap = chance.randrange(number), chance.randrange(1, 9)
        vocab.update({name: known + gap for name, known in vocab.items() if known >= begin})
        for each in whole["added_tokens"]:
            each["id"] = vocab[each["content"]]
    seen = set()
    for name in chance.sample(NAMES, chance.choice((0, 0, 2, 5, len(NAMES)))):
        normalized = chance.random() < 0.3
        if name in seen or (normalized and "\u00e9" in seen and name == "e\u0301") or (name == "\u00e9" and "e\u0301" in seen):
            continue
        if vocab.get(name, number) in [each["id"] for each in whole["added_tokens"]]:
            continue  # two added tokens of one number are rejected
        seen.add(name)
        flags = {flag: chance.random() < 0.3 for flag in ("single_word", "lstrip", "rstrip", "special")}
        known = vocab.get(name)
        whole["added_tokens"].append(token(name, number if known is None else known, normalized=normalized, **flags))
        number += known is None
    if chance.random() < 0.2:  # merges as older files write them
        whole["model"]["merges"] = [" ".join(pair) for pair in whole["model"]["merges"]]
    return whole


def prepared(build, folder, *flags):
    """The token file, or the line that refuses its input."""
    output = folder / "out.dtok"
    command = [build / "bin/dtrain", "data", "prepare", *flags, "--tokenizer", folder / "tokenizer.json", "--overwrite", "--output", output]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (read_token_file(output), "") if done.returncode == 0 else (None, done.stderr)


def differences(build, folder, whole, texts):
    """What differs from the package: of many short documents, and of one long one that is cut."""
    (folder / "tokenizer.json").write_text(json.dumps(whole, ensure_ascii=False))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    found, error = prepared(build, folder, folder / "texts.jsonl", "--field", "text")
    if found is None:
        return [error]
    expected = [each.ids for each in tokenizer.encode_batch(texts, add_special_tokens=False)]
    wrong = [text for text, tokens, document in zip(texts, expected, found.documents, strict=True) if tokens != document]
    together = ".".join(texts) * 3
    (folder / "text.txt").write_text("x" + together, newline="")
    found, error = prepared(build, folder, folder / "text.txt", "--as-text")
    if found is None:
        return [error]
    if found.tokens != tokenizer.encode("x" + together, add_special_tokens=False).ids:
        wrong.append(f"the whole of {len(together)} characters")
    return wrong


def main(build, minutes="5", seed=None):
    seed = int(seed) if seed else random.SystemRandom().randrange(1 << 32)
    chance = random.Random(seed)
    print(f"seed {seed}", flush=True)
    real = (SOURCE / "tests/golden/text.bin").read_bytes().decode()
    end = time.monotonic() + 60 * float(minutes)
    base, rounds = trained(chance, real), 0
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            whole = random_tokenizer(chance, base)
            texts = [random_text(chance, real, chance.choice((1, 5, 30, 3000))) for _ in range(700)]
            wrong = differences(pathlib.Path(build), pathlib.Path(folder), whole, texts)
            if wrong:
                print(f"round {rounds}: {len(wrong)} texts differ; the first: {wrong[0]!r}")
                whole.pop("model")
                print(json.dumps(whole, ensure_ascii=False))
                return 1
            rounds += 1
    print(f"{rounds} tokenizers, {700 * rounds} texts: no difference")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
