"""Writes inputs of dtrain, prepares them, and reads the token file that they become or the line that refuses them. Token files of
version 3 are read by docs/formats/tokens.md alone."""

import dataclasses
import struct

from dtrain_harness import DATA, DTRAIN, FolderTest, run
from messages import assert_error


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


class DataTest(FolderTest):
    """Relative paths are of the test's folder."""

    def dtrain(self, *arguments, status=0):
        return run(DTRAIN, *arguments, cwd=self.folder, status=status)

    def prepare(self, *arguments):
        self.dtrain("data", "prepare", *arguments, "--output", "out.dtok", "--overwrite")
        return read_token_file(self.folder / "out.dtok")

    def refused(self, *arguments, parts=(), status=DATA):
        """One line, which holds the parts, and nothing new in the folder."""
        before = sorted(self.folder.rglob("*"))
        assert_error(self.dtrain(*arguments, status=None), status, *parts)
        self.assertEqual(sorted(self.folder.rglob("*")), before)
