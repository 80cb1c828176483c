"""soak_fuzz.py BUILD [SECONDS]: the parsers of files that users hand in, fuzzed by clang's libFuzzer, each for so long.

BUILD/bin/small_saver makes the first inputs. Status 0 if nothing was found, 77 without clang.
"""

import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
FLAGS = ["-std=c++20", "-g", "-O1", "-DFMT_HEADER_ONLY", "-I", SOURCE / "lib", "-I", SOURCE / "tests",
         "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=undefined"]
PARSERS = [*(SOURCE / "lib/dtrain/checkpoint/format").glob("*.cpp"),
           *(path for path in (SOURCE / "lib/dtrain/base").glob("*.cpp") if path.name != "arguments.cpp"),
           SOURCE / "lib/dtrain/config/values/mesh_shape.cpp", SOURCE / "lib/dtrain/base/text/text.cpp",
           SOURCE / "lib/dtrain/data/tokenizer/utf8.cpp",
           *(SOURCE / f"lib/dtrain/data/tokenizer/hugging_face/{name}.cpp"
             for name in ("byte_alphabet", "byte_pairs", "json_tree", "pattern_syntax", "tokenizer_json", "unicode_ranges"))]


# Words that chance seldom writes and a careless reader accepts.
WORDS = ("\\\\p{L}", "(?i:", "(?!", "{1,3}", "[^", "/", "../", "a/b", "\\\\u0000", "\\\\n", "-1", "0", "1e999", "9223372036854775807", "18446744073709551615", "[]",
         "{}", "null", ",", ":", "F32", "BOOL")

# What torch.save makes of {"t": a tensor of 2 rows of 3}.
TORCH_PICKLE = (b"\x80\x02}X\x01\0\0\0tctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\n"
                b"X\x01\0\0\x000X\x03\0\0\0cpuK\x06tQK\0K\x02K\x03\x86K\x03K\x01\x86\x89NtRs.")


def compile_targets(targets, folder):
    """The programs, each linked from its own file and the parsers."""
    def compile_one(source):
        result = folder / (source.stem + ".o")
        subprocess.run(["clang++", *FLAGS, "-c", source, "-o", result], check=True)
        return result

    sources = [SOURCE / f"tests/fuzz/{target}.cpp" for target in targets]
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, sources + PARSERS))
    for target, its_own in zip(targets, objects):
        subprocess.run(["clang++", *FLAGS, its_own, *objects[len(targets):], "-lxxhash", "-lz", "-o", folder / target],
                       check=True)


def first_inputs(build, folder):
    """Target -> folder with whole files of a small checkpoint."""
    run = folder / "run"
    run.mkdir()
    subprocess.run([build / "bin/small_saver", "save", run, "1", "2", "serial"], input="x", text=True, check=True,
                   stdout=subprocess.DEVNULL)
    inputs = {"manifest_fuzz": folder / "manifests", "safetensors_fuzz": folder / "files", "weights_fuzz": folder / "torch"}
    for place in inputs.values():
        place.mkdir()
    checkpoint = run / "checkpoints/step-1"
    manifest = (checkpoint / "manifest.json").read_text()
    (inputs["manifest_fuzz"] / "whole").write_text(manifest)
    # The part that the checksum covers: the target puts the checksum in front.
    (inputs["manifest_fuzz"] / "body").write_text(manifest.partition(",")[2])
    # As little as can be, in which chance hits what matters.
    little = json.loads(manifest)
    del little["xxh3"]
    little["tensors"] = {"t": {"dtype": "F32", "shape": [2]}}
    little["files"] = [{"name": "f", "bytes": 8, "xxh3": "0" * 16,
                        "pieces": [{"tensor": "t", "offsets": [0], "sizes": [2], "xxh3": "0" * 16}]}]
    (inputs["manifest_fuzz"] / "little").write_text(json.dumps(little, separators=(",", ":"))[1:])
    for path in checkpoint.glob("*.safetensors"):
        shutil.copy(path, inputs["safetensors_fuzz"])
    with zipfile.ZipFile(inputs["weights_fuzz"] / "whole", "w") as archive:
        archive.writestr("a/data.pkl", TORCH_PICKLE)
        archive.writestr("a/data/0", bytes(24))
    inputs["tokenizer_fuzz"] = folder / "tokenizers"
    inputs["tokenizer_fuzz"].mkdir()
    variants = json.loads((SOURCE / "tests/golden/tokenizers/variants.json").read_text())
    base = variants["base"] | {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}}
    base["model"] |= {"vocab": {"<|end|>": 0, "a": 1, "b": 2, "ab": 3}, "merges": [["a", "b"]]}
    (inputs["tokenizer_fuzz"] / "whole").write_text(json.dumps(base))
    for number, variant in enumerate(variants["variants"]):
        (inputs["tokenizer_fuzz"] / f"steps{number}").write_text(json.dumps(variant["pre_tokenizer"]))
    return inputs


def main(build, seconds="60"):
    if shutil.which("clang++") is None:
        print("SKIPPED: no clang++ found, and this needs its libFuzzer")
        return 77
    failed = []
    with tempfile.TemporaryDirectory(prefix="dtrain-fuzz-") as name:
        folder = pathlib.Path(name)
        targets = first_inputs(pathlib.Path(build), folder)
        compile_targets(list(targets), folder)
        words = folder / "words"
        words.write_text("".join(f'"{word}"\n' for word in WORDS))
        for target, inputs in targets.items():
            result = subprocess.run([folder / target, f"-dict={words}", "-max_total_time=" + seconds,
                                     "-max_len=8192", "-print_final_stats=1",
                                     f"-artifact_prefix={SOURCE}/build/{target}-", inputs], check=False)
            if result.returncode != 0:
                failed.append(target)
    print("failed: " + ", ".join(failed) if failed else "no parser failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
