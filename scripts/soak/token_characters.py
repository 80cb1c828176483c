"""Token IDs as text, for vocabularies whose tokenizer dtrain does not support: token n is the private character U+F0000 + n.

A SentencePiece model with these characters as pieces lets dtrain prepare token files and generate text; the caller converts
between IDs and text with the model's own tokenizer. SentencePiece needs a piece for unknown characters: this is token 0, which
therefore has no character in prompts and data."""

import struct

FIRST = 0xF0000
MOST = 0xFFFD  # tokens: the private characters that follow
UNKNOWN_TEXT = " \u2047 "  # how SentencePiece writes the unknown piece


def text_of(tokens):
    if unwritable := [token for token in tokens if not 0 < token < MOST]:
        raise ValueError(f"token {unwritable[0]} has no character; tokens 1 to {MOST - 1} have one")
    return "".join(chr(FIRST + token) for token in tokens)


def tokens_of(text):
    return [ord(character) - FIRST for character in text.replace(UNKNOWN_TEXT, chr(FIRST))]


def tokenizer_model(vocab):
    """The bytes of the SentencePiece model: a ModelProto with one piece per token."""
    if not 1 < vocab <= MOST:
        raise ValueError(f"a vocabulary of {vocab}; 2 to {MOST} tokens have characters")
    pieces = b"".join(message(1, piece(token)) for token in range(vocab))
    characters = b"\x18\x04"  # TrainerSpec.model_type: CHAR
    verbatim = message(1, b"identity") + b"\x18\x00\x20\x00\x28\x00"  # no added, removed or escaped spaces
    return pieces + message(2, characters) + message(3, verbatim)


def piece(token):
    """A SentencePiece: its text, a score of 0, and its type if it is UNKNOWN."""
    return message(1, chr(FIRST + token).encode()) + b"\x15" + struct.pack("<f", 0) + (b"\x18\x02" if token == 0 else b"")


def message(number, content):
    """A protobuf field that holds a message, a string or bytes."""
    return bytes([number << 3 | 2]) + varint(len(content)) + content


def varint(value):
    """An unsigned integer in groups of 7 bits, the lowest first."""
    low = bytes([value & 0x7F | (0x80 if value > 0x7F else 0)])
    return low + varint(value >> 7) if value > 0x7F else low
