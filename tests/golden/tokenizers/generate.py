#!/usr/bin/env python3
"""Writes variants.json: tokenizers, texts, and the tokens and decoded texts that the package tokenizers 0.23 gives.

    python generate.py TEXT      # TEXT: a file to train the byte pair model on
"""

import copy
import json
import pathlib
import sys

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEXTS = [
    "Hello world", "", " ", "\n", " two  spaces   and\ttabs\t\t\n\n\nlines\r\nend \r\n", "It's we'll I'M they'RE don't 'tis 'S'T'\u017f",
    "1234567 3.14 x2y 0x1F \u0663\u0664\u0665 \u2167 \u00bd \u00b2 \U00010d40 \U0001ccf0", "na\u00efve cafe\u0301 e\u0301a\u0300 \u212b \ufb01 e\u0301\u0301\u0327",
    "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0\u3002 \U0002ebf0\U00031350", "emoji \U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd \U0001f1e9\U0001f1ea end",
    "mixed<|end|>special <|end|>\n<|end|><|end|>x", "\u03b1\u03b2\u03b3 \u0420\u0443\u0441 \u0627\u0644\u0639 \u0939\u093f\u0928\u094d\u0926\u0940", "x" * 60 + " " * 33 + "y",
    "\u00a0nbsp\u2003em\u200bzero\ufeffbom\u180e\u2028\u0085", "a\u0000b\u0001\u0004", "the-and--of---- --in", "wordword word, word.word \u00e9word word\u00e9",
    "a  <left>  b  <right>  c  <both>  <both> <left><right> <single>d <single> e<single>", "cafe\u0301 caf\u00e9 xcafe\u0301x", "the thee there",
    "\r\r\n \r", "\t \n \t x", "ab\u2028cd\u2029ef", "x\u0301\u1abf \u0cd5\u0cc6",
]


def split(pattern, behavior, invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def byte_level(prefix=False, regex=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def token(content, number, **flags):
    return {"id": number, "content": content, **{name: flags.get(name, False) for name in
                                               ("single_word", "lstrip", "rstrip", "normalized", "special")}}


def variants(size):
    plain = byte_level(regex=False)
    yield "gpt2", {"pre_tokenizer": byte_level()}
    yield "prefix space", {"pre_tokenizer": byte_level(prefix=True)}
    yield "llama3", {"pre_tokenizer": sequence(split(LLAMA3, "Isolated"), plain), "model": {"ignore_merges": True}}
    yield "qwen2", {"pre_tokenizer": sequence(split(LLAMA3.replace("{1,3}", ""), "Isolated"), plain), "normalizer": {"type": "NFC"}}
    yield "smollm2", {"pre_tokenizer": sequence({"type": "Digits", "individual_digits": True}, byte_level())}
    yield "digits", {"pre_tokenizer": sequence({"type": "Digits", "individual_digits": False}, byte_level(prefix=True))}
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            yield f"{behavior} {invert}", {"pre_tokenizer": sequence(split("-", behavior, invert, "String"), plain)}
    yield "empty matches", {"pre_tokenizer": sequence(split("-*", "MergedWithPrevious"), plain)}
    yield "two patterns", {"pre_tokenizer": sequence(split(r"\p{N}{1,3}", "Isolated"), split(r"[\u4e00-\u9fff]+", "Isolated"), byte_level())}
    yield "unknown", {"pre_tokenizer": byte_level(), "without": ["\u0101", "\u0122", "\u00b8", "\u0104"], "model": {"unk_token": "<|end|>"}}
    yield "fused unknown", {"pre_tokenizer": byte_level(), "without": ["\u0101", "\u0122", "\u00b8", "\u0104"],
                            "model": {"unk_token": "<|end|>", "fuse_unk": True}}
    yield "dropped bytes", {"pre_tokenizer": byte_level(), "without": ["\u0101", "\u0122", "\u00b8", "\u0104"]}
    flags = [token("<left>", size, lstrip=True), token("<right>", size + 1, rstrip=True), token("<both>", size + 2, lstrip=True, rstrip=True),
             token("<single>", size + 3, single_word=True), token("word", size + 4, single_word=True), token("word,", size + 5),
             token("caf\u00e9", size + 6, normalized=True), token("xcafe\u0301x", size + 7, normalized=True)]
    yield "added", {"pre_tokenizer": byte_level(), "added_tokens": flags}
    yield "added, normalized", {"pre_tokenizer": byte_level(prefix=True), "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]},
                                "added_tokens": flags}


def main():
    text = pathlib.Path(sys.argv[1]).read_text(errors="replace")
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    lines = text.splitlines(keepends=True) + TEXTS * 3
    trained.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=400, special_tokens=["<|end|>"], show_progress=False,
                                                          initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    base = json.loads(trained.to_str())
    base["decoder"] = byte_level()
    size = len(base["model"]["vocab"])
    result = {"texts": TEXTS, "base": copy.deepcopy(base), "variants": []}
    for name, parts in variants(size):
        whole = copy.deepcopy(base)
        whole["model"].update(parts.get("model", {}))
        for letter in parts.get("without", []):
            del whole["model"]["vocab"][letter]
            whole["model"]["merges"] = [pair for pair in whole["model"]["merges"] if letter not in "".join(pair)]
        added = parts.get("added_tokens", [])
        whole.update({key: parts[key] for key in ("pre_tokenizer", "normalizer") if key in parts})
        whole["added_tokens"] += added
        tokenizer = Tokenizer.from_str(json.dumps(whole))
        ids = [tokenizer.encode(each, add_special_tokens=False).ids for each in TEXTS]
        decoded = [tokenizer.decode(each, skip_special_tokens=False) for each in ids]
        result["variants"].append({"name": name, **parts, "ids": ids, "decoded": decoded})
    (HERE / "variants.json").write_text(json.dumps(result, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
