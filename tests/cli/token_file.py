"""Reads token files of version 3 by docs/formats/tokens.md alone."""

import dataclasses
import struct


@dataclasses.dataclass(frozen=True)
class TokenFile:
    vocab: int
    tokens: list
    num_bytes: int
    num_words: int
    document_ends: list
    tokenizer: int
    model: bytes

    @property
    def documents(self):
        begins = [0, *self.document_ends]
        return [self.tokens[begin:end] for begin, end in zip(begins, self.document_ends)]


def read_token_file(path):
    content = path.read_bytes()
    magic, version, width, vocab, count, _ = struct.unpack_from("<8sIIQQQ", content)
    _, num_bytes, num_words, documents, model_bytes, tokenizer, _, _ = struct.unpack_from("<8Q", content, 40)
    assert magic == b"\x89DTOK\r\n\x1a" and version == 3, (magic, version)
    tokens = struct.unpack_from(f"<{count}{ {1: 'B', 2: 'H', 4: 'I'}[width]}", content, 104)
    end = -(-(104 + count * width) // 8) * 8
    ends = struct.unpack_from(f"<{documents}Q", content, end)
    model = content[end + 8 * documents:]
    assert len(model) == model_bytes
    return TokenFile(vocab, list(tokens), num_bytes, num_words, list(ends), tokenizer, model)
