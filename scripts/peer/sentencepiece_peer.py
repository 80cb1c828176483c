"""SentencePiece as a Python user has it: trains models, times one thread, and compares its tokens with dtrain's. Prints
one line of JSON."""

import argparse
import json
import os
import pathlib
import sys
import time

import sentencepiece

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ.setdefault("DTRAIN_SOURCE_DIR", str(ROOT))  # which the tests' modules read
os.environ.setdefault("DTRAIN_BINARY_DIR", str(ROOT / "build" / "release"))
sys.path.insert(0, str(ROOT / "tests" / "cli"))
from data_harness import read_token_file


def train(options):
    sentencepiece.SentencePieceTrainer.train(input=str(options.text), model_prefix=str(options.output.with_suffix("")),
                                             model_type=options.type, vocab_size=options.vocab_size, minloglevel=2)
    return {"vocab": len(sentencepiece.SentencePieceProcessor(model_file=str(options.output)))}


def encode_each(processor, lines):
    for line in lines:
        processor.encode(line)


def encode_all(processor, lines):
    processor.encode(lines, num_threads=1)


def seconds(options):
    """Of the lines of a text by one thread, in two forms: a call for each line, and one call for all."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(options.model))
    lines = options.text.read_text().splitlines()
    found = {}
    for name, encode in (("each line", encode_each), ("a list", encode_all)):
        begin = time.perf_counter()
        encode(processor, lines)
        found[name] = time.perf_counter() - begin
    return found


def places(processor, tokens):
    """Each token with the number of characters before it: what two readings of one text share."""
    place, found = 0, set()
    for token in tokens:
        found.add((place, token))
        place += len(processor.id_to_piece(token))
    return found


def compare(options):
    """The token files hold each line as a document, and the text as one; ids end with the model's end of sentence."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(options.model))
    text, end = options.text.read_text(), [processor.eos_id()]
    lines, documents = text.splitlines(), read_token_file(options.lines).documents
    if len(lines) != len(documents):
        sys.exit(f"{len(documents)} documents of {len(lines)} lines")
    (document,) = read_token_file(options.document).documents
    expected = processor.encode(text) + end
    return {"lines": len(lines), "tokens": len(expected),
            "lines_that_differ": sum(processor.encode(line) + end != found for line, found in zip(lines, documents)),
            "tokens_that_differ": len(places(processor, expected) - places(processor, document))}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    actions = parser.add_subparsers(required=True)
    for action, flags in ((train, ("output", "type", "vocab-size")), (seconds, ("model",)),
                          (compare, ("model", "lines", "document"))):
        command = actions.add_parser(action.__name__)
        command.set_defaults(action=action)
        for flag in ("text", *flags):
            command.add_argument(f"--{flag}", required=True, type={"type": str, "vocab-size": int}.get(flag, pathlib.Path))
    options = parser.parse_args()
    print(json.dumps(options.action(options)))


if __name__ == "__main__":
    main()
