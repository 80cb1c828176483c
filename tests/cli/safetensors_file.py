"""Reads and writes safetensors files with the standard library alone."""

import json
import struct


def read_model(path):
    """Names -> (dtype, shape, bytes), and the metadata, read as the format's page says."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    metadata = header.pop("__metadata__", {})
    body = data[8 + length:]
    return {name: (entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])])
            for name, entry in header.items()}, metadata


def tensors_of(path):
    """Names and values of a file of F64 and F32 tensors."""
    kinds = {"F64": "d", "F32": "f"}
    return {name: struct.unpack(f"<{len(data) // struct.calcsize(kinds[dtype])}{kinds[dtype]}", data)
            for name, (dtype, _, data) in read_model(path)[0].items()}


def write_model(path, tensors, metadata=None, keep_checksum=False):
    """The metadata of another file may be given: its checksum is left out, unless it is to be kept."""
    header, body = {}, b""
    metadata = {key: value for key, value in (metadata or {}).items() if keep_checksum or key != "dtrain.checksum"}
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    if metadata:
        header["__metadata__"] = metadata
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
