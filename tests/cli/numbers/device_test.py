"""Whole processes on a fake accelerator, whose memory the host cannot access and whose kernels run late: the bits of the CPU,
and errors for missing devices. The device is a plugin next to the libdtrain.so of build/PRESET/fake."""

import functools
import json
import os
import pathlib
import re
import shutil
import unittest

from dtrain_harness import (BUILD, DTRAIN, GOLDEN, USAGE, FolderTest, final_model, launched, make_folder, metrics_of, run)
from messages import assert_names, error_line, lines_naming

FAKE = BUILD / "fake" / "bin" / "dtrain"
MEMORY, DEVICE, INTERNAL = 8, 13, 70  # exit statuses
WORK = ["--layers", "2", "--width", "32", "--heads", "2", "--neurons", "64", "--seq-len", "32", "--global-batch", "8",
        "--microbatch", "2", "--val-fraction", "0.05", "--eval-sequences", "5", "--eval-every", "2", "--threads", "1",
        "--steps", "4", "--checkpoint-every", "2", "--reduction", "ordered", "--data", GOLDEN / "text.bin"]
LATE = {"DTRAIN_FAKE": "late"}  # kernels run when they are waited for
LAYOUTS = {"single": (1, "--dropout 0.1"), "ddp": (2, "--strategy ddp --dropout 0.1"),
           "fsdp": (2, "--strategy fsdp --recompute level"),
           "zero 3": (2, "--strategy zero --zero-stage 3"), "pp": (2, "--strategy pp"),
           "dp": (1, "--strategy dp --local-ranks 2"), "mp": (1, "--strategy mp --local-ranks 2"),
           "chunks": (2, "--strategy tp --attention chunked:12"), "bf16 chunks": (1, "--dtype bfloat16 --attention chunked:12"),
           "bf16": (1, "--dtype bfloat16"), "fp16": (2, "--dtype float16 --strategy ddp"),
           "moments on the host": (1, "--offload optimizer"),
           "masters on the host": (2, "--strategy fsdp --offload all --dtype bfloat16")}
# Layouts with the same CPU bits as another one (sharding_test.py, local_ranks_test.py), and those that only run as graphs.
SAME_BITS = {**dict.fromkeys(("ddp", "fsdp", "zero 3", "dp", "moments on the host"), "single"), "masters on the host": "bf16"}
AS_GRAPHS = ("zero 3", "dp", "bf16")
# Other tests of this file compare their bits.
ELSEWHERE = ("single", "ddp", "pp")
# Almost no activations: sharding halves a rank's memory.
WIDE = ["--tie-layers", "off", "--layers", "8", "--width", "64", "--neurons", "1024", "--global-batch", "2", "--microbatch", "1",
        "--seq-len", "16", "--device", "fake", "--steps", "3"]
LEAN = ["--val-fraction", "0", "--checkpoint-every", "none"]  # for runs whose memory alone is of interest
# Next to this state, the buffers through which offloaded state passes are small.
WIDER = ["--layers", "4", "--neurons", "4096", *LEAN]


def train(run_dir, layout, *flags, environment=None):
    ranks, setting = LAYOUTS[layout]
    return run(*launched(ranks, *WORK, *setting.split(), "--run-dir", run_dir, *flags, program=FAKE), environment=environment)


@functools.cache
def on_cpu(layout):
    """Run folder of a layout on the CPU; tests do not modify it."""
    if layout in SAME_BITS:
        return on_cpu(SAME_BITS[layout])
    run_dir = make_folder(unittest) / "run"
    train(run_dir, layout, "--device", "cpu", "--kernels", "plain")  # devices use plain kernels
    return run_dir


def numbers(run_dir):
    return {(line["step"], key): line[key] for line in metrics_of(run_dir) if "step" in line
            for key in ("loss", "grad_norm", "val_loss") if key in line}


class Training(FolderTest):
    def assert_same(self, run_dir, layout):
        self.assertEqual(numbers(run_dir), numbers(on_cpu(layout)))
        self.assertEqual(final_model(run_dir).read_bytes(), final_model(on_cpu(layout)).read_bytes())

    def test_every_layout_has_the_bits_of_the_cpu(self):
        """More layouts, in one process: tests/device."""
        for index, layout in enumerate(layout for layout in LAYOUTS if layout not in (*AS_GRAPHS, *ELSEWHERE)):
            with self.subTest(layout):
                run_dir = self.folder / layout
                train(run_dir, layout, "--device", "fake", environment=LATE if index % 2 == 0 else None)
                self.assert_same(run_dir, layout)

    def test_a_profile_shows_when_the_device_worked(self):
        run_dir = self.folder / "run"
        result = train(run_dir, "ddp", "--device", "fake", "--profile", "2", environment=LATE)
        self.assert_same(run_dir, "ddp")
        assert_names(result.stderr + result.stdout, "profile", "2 steps", "device", "2 ranks")
        events = json.loads((run_dir / "profile" / "trace.json").read_text())["traceEvents"]
        threads = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
        for rank in range(2):
            spans = {kind: [event for event in events if event["ph"] == "X" and event["pid"] == rank
                            and threads[rank, event["tid"]] == kind] for kind in ("steps", "device")}
            self.assertEqual([event["name"] for event in spans["steps"]], [event["name"] for event in spans["device"]])
            self.assertGreater(len(spans["steps"]), 20)
            pairs = list(zip(spans["steps"], spans["device"]))
            for host, device in pairs:  # it executes work that the host has submitted
                self.assertGreaterEqual(device["ts"], host["ts"])
                self.assertGreaterEqual(device["dur"], 0)
            forward = [(host, device) for host, device in pairs if host["name"] == "forward"]
            # Kernels of this device run when they are waited for: after the host's span has ended.
            self.assertTrue(any(device["ts"] > host["ts"] + host["dur"] for host, device in forward))
            self.assertTrue(all(device["dur"] > 0 for _, device in forward))

    def test_graphs_have_the_bits_of_the_cpu(self):
        for index, layout in enumerate(("single", "fp16", *AS_GRAPHS)):
            with self.subTest(layout):
                run_dir = self.folder / layout
                result = train(run_dir, layout, "--device", "fake", "--compile", "--verbose", environment=LATE if index % 2 == 0 else None)
                self.assertRegex(result.stderr, r"(?m)^(\[0\] )?graphs +")
                self.assert_same(run_dir, layout)

    def test_a_run_moves_between_device_and_cpu(self):
        for first, then in (("fake", "cpu"), ("cpu", "fake")):
            run_dir = self.folder / first
            train(run_dir, "single", "--device", first, "--kernels", "plain", "--steps", "2")
            result = train(run_dir, "single", "--device", then, "--kernels", "plain", "--resume", "auto", environment=LATE)
            assert_names(result.stderr, "machine.device", "cpu", "fake")
            self.assert_same(run_dir, "single")

    def test_ranks_share_a_device_if_allowed(self):
        run_dir = self.folder / "run"
        train(run_dir, "ddp", "--device", "fake:0", "--share-devices", "on")
        self.assert_same(run_dir, "ddp")

    def test_tf32_affects_only_devices(self):
        for device, names in (("cpu", ("warning", "--matmul-precision", "CPU")), ("fake", ("machine.matmul_precision=tf32",))):
            result = train(self.folder / device, "single", "--device", device, "--matmul-precision", "tf32", "--verbose")
            assert_names(result.stdout + result.stderr, *names)
            self.assertEqual(bool(lines_naming(result.stderr, "warning", "--matmul-precision")), device == "cpu")

    def test_the_start_table_names_the_device_which_has_the_bits_of_the_cpu(self):
        for device, name, layout, variables in (("fake:0", "fake", "pp", {}),
                                                ("fake:3", "fake:3", "single", {"CUDA_DEVICE_MAX_CONNECTIONS": "8"})):
            error = train(self.folder / device, layout, "--device", name, environment=LATE | variables).stderr
            self.assert_same(self.folder / device, layout)
            number = variables.get("CUDA_DEVICE_MAX_CONNECTIONS", 32)
            self.assertRegex(error, rf"(?m)^(\[0\] )?device +{device}, .*, CUDA_DEVICE_MAX_CONNECTIONS={number}\b")
            # Kernels are loaded before stages wait for each other.
            self.assertEqual(len(re.findall(rf"(?m)device +{device}, .*, CUDA_MODULE_LOADING=EAGER", error)), int(layout == "pp"))

    def test_the_order_of_addition_and_the_interface_for_nccl_follow_flag_and_variable(self):
        for reduction, reproducibility, variables, interface in (("auto", r"none \(--reduction fast", {}, "=lo"),
                                                                 ("ordered", "microbatch=", {"NCCL_SOCKET_IFNAME": "eth"}, "eth")):
            run_dir = self.folder / reduction
            result = train(run_dir, "ddp", "--device", "fake", "--interface", "eth99,lo", "--reduction", reduction, "--verbose",
                           environment=variables)
            self.assertRegex(result.stdout + result.stderr, "reproducibility class +" + reproducibility)
            self.assertAlmostEqual(metrics_of(run_dir)[-1]["val_loss"], metrics_of(on_cpu("ddp"))[-1]["val_loss"], delta=1e-3)
            self.assertRegex(result.stderr, rf"(?m)device +fake:0, .*, NCCL_SOCKET_IFNAME={interface}$")
            self.assertEqual(lines_naming(result.stderr, "warning"), [])
        result = run(*launched(2, *WORK, "--strategy", "ddp", "--run-dir", self.folder / "none", "--device", "fake",
                               "--interface", "eth99", program=FAKE), status=2)
        self.assertIn("--interface: found eth99", result.stderr)

    def test_a_list_of_devices_is_for_ranks_that_are_threads(self):
        result = train(self.folder / "run", "single", "--device", "auto", "--devices", "0,1", "--verbose")
        assert_names(result.stderr, "warning", "--devices")
        self.assertIn("reproducibility class ", result.stderr)

    def test_long_sequences_are_cut_by_the_rates_of_the_device(self):
        for length, attention in ((256, "full"), (2048, "chunked:256")):
            result = run(FAKE, "train", *WORK, "--width", "16", "--neurons", "8192", "--seq-len", length, "--device", "fake",
                         "--dtype", "bfloat16", "--print-config")
            self.assertIn(f'"attention": "{attention}"', result.stdout)

    def test_a_device_evaluates_what_fused_kernels_trained(self):
        train(self.folder / "run", "single", "--device", "cpu", "--kernels", "fused")
        losses = [json.loads(run(FAKE, "evaluate", "--from", self.folder / "run", "--data", GOLDEN / "text.bin", "--eval-sequences", "5",
                                 "--device", device).stdout)["loss"] for device in ("cpu", "fake")]
        self.assertAlmostEqual(*losses, delta=1e-4)

    def test_a_device_generates_and_verifies(self):
        flags = ["--from", on_cpu("single"), "--max-tokens", "30", "--temperature", "0"]
        texts = [run(FAKE, "generate", *flags, "--device", device).stdout for device in ("cpu", "fake")]
        self.assertEqual(texts[0], texts[1])
        run(FAKE, "verify", "--golden", GOLDEN / "mini.safetensors", "--device", "fake", environment=LATE)


def start_of(run_dir):
    return next(line for line in metrics_of(run_dir) if line.get("event") == "start")


def predicted(run_dir):
    return sum(start_of(run_dir)["memory_predicted_bytes"].values())


class Memory(FolderTest):
    @classmethod
    @functools.cache
    def whole(cls, layout, *flags):
        """Run folder of a layout without limits; tests do not modify it."""
        ranks, setting = LAYOUTS[layout]
        run_dir = make_folder(cls) / "run"
        run(*launched(ranks, *WORK, *setting.split(), *WIDE, *flags, "--run-dir", run_dir, program=FAKE))
        return run_dir

    def train(self, name, layout, *flags, environment=None, status=0):
        ranks, setting = LAYOUTS[layout]
        return run(*launched(ranks, *WORK, *setting.split(), *WIDE, *flags, "--run-dir", self.folder / name, program=FAKE),
                   environment=environment, status=status)

    def error_of(self, result, *parts):
        line = error_line(result.stderr)
        for part in parts:
            self.assertIn(part, line)

    def test_the_prediction_holds_on_a_device(self):
        for layout, *flags in (("single",), ("moments on the host",), ("masters on the host", "--layers", "8")):
            with self.subTest(layout):
                run_dir = self.whole(layout, *WIDER, *flags)
                [memory] = [line for line in metrics_of(run_dir) if line.get("event") == "memory"]
                self.assertAlmostEqual(predicted(run_dir) / memory["peak_bytes"], 1, delta=0.05)

    def test_the_prediction_holds_with_graphs(self):
        many_activations = ["--layers", "4", "--width", "128", "--seq-len", "64", "--neurons", "1024", "--global-batch", "4",
                            "--microbatch", "2", "--tie-layers", "on"]
        for layout, *flags in (("single",), ("single", *many_activations), ("fsdp", *many_activations), ("single", *many_activations, "--recompute", "level")):
            with self.subTest(layout=layout, flags=flags):
                name = f"{layout} {len(flags)}"
                self.train(name, layout, *flags, "--compile")
                [memory] = [line for line in metrics_of(self.folder / name) if line.get("event") == "memory"]
                self.assertAlmostEqual(predicted(self.folder / name) / memory["peak_bytes"], 1, delta=0.12)

    def test_what_is_offloaded_leaves_the_device(self):
        self.train("all", "single", "--offload", "all", *WIDER)
        runs = (self.whole("single", *WIDER), self.whole("moments on the host", *WIDER), self.folder / "all")
        for run_dir in runs[1:]:
            self.assertGreater(start_of(run_dir)["host_memory_predicted_bytes"], 0)
        needs = [predicted(run_dir) for run_dir in runs]
        self.assertLess(needs[1], 0.7 * needs[0])
        self.assertLess(needs[2], 0.9 * needs[1])

    def test_a_model_too_large_for_one_device_trains_on_two(self):
        limit = 3 * predicted(self.whole("single", *LEAN)) // 4  # shards take little more than half
        full = self.train("full", "single", "--memory-limit", str(limit), status=MEMORY)
        self.error_of(full, "memory on fake:0 ", f"capacity of {limit} bytes", "--strategy fsdp", "--recompute level", "--offload all", "--memory-limit")
        self.train("two", "fsdp", *LEAN, "--memory-limit", str(limit))

    def test_the_measured_peak_respects_the_limit(self):
        limit = predicted(self.whole("single", *LEAN))
        self.assertGreater(1.2 * limit, 3 << 20)
        self.train("limited", "single", *LEAN, "--memory-limit", str(limit * 11 // 10))
        self.assertTrue(any(line.get("mfu") for line in metrics_of(self.folder / "limited")))

    def test_mfu_is_omitted_without_memory_to_measure_it(self):
        run_dir = self.folder / "run"
        result = train(run_dir, "single", "--device", "fake", "--memory-limit", "1700KiB", "--dropout", "0")
        steps = [line for line in metrics_of(run_dir) if "mfu" in line]
        self.assertEqual([line["mfu"] for line in steps], [None] * 4)
        self.assertNotIn("mfu", result.stderr)

    def test_an_automatic_microbatch_fits_the_free_device_memory(self):
        def microbatch(name, memory, *flags):
            flags = [*WORK, *flags, "--global-batch", "16", "--steps", "1", "--microbatch", "0", "--device", "fake"]
            run(*launched(1, *flags, "--run-dir", self.folder / name, program=FAKE), environment={"DTRAIN_FAKE": memory})
            (start,) = [line for line in metrics_of(self.folder / name) if line.get("event") == "start"]
            return json.loads((self.folder / name / "config.json").read_text())["resolved"]["batch"]["microbatch"], start

        found, start = microbatch("free", "")  # the device cannot report free memory
        self.assertEqual(found, 8)
        predicted = sum(start["memory_predicted_bytes"].values())
        self.assertEqual(microbatch("room", f"memory={2 * predicted}")[0], 8)
        self.assertLess(microbatch("full", f"memory={predicted}")[0], 8)  # above 80 % of it

    def test_advice_names_only_settings_not_in_use(self):
        flags = ["--recompute", "level", "--offload", "all"]
        full = self.train("full", "single", *flags, environment={"DTRAIN_FAKE": "memory=15000000"}, status=MEMORY)
        self.error_of(full, "memory on fake:0 ", "--seq-len", "--strategy fsdp")
        for flag in ("--recompute", "--offload", "--microbatch", "--memory-limit", " 0 B", " hold "):
            self.assertNotIn(flag, full.stderr.splitlines()[-1])
        self.assertRegex(full.stderr.splitlines()[-1], r" \d+\.\d MiB .*; ")

    def test_a_host_without_memory_for_offloaded_state_is_reported(self):
        huge = ["--layers", "16", "--width", "16384", "--neurons", "1048576", "--offload", "all", "--memory-limit", "1GiB"]
        full = self.train("full", "single", *huge, status=USAGE)
        self.error_of(full, "host's memory", "--offload optimizer, --offload none")
        self.assertNotIn("--memory-limit SIZE", full.stderr)
        self.assertNotIn("--recompute level", full.stderr.splitlines()[-1])

    def test_a_rank_whose_device_is_full_is_named(self):
        full = self.train("full", "fsdp", environment={"DTRAIN_FAKE": "memory=22500000 device=1"}, status=MEMORY)
        self.assertIn("memory on fake:1", full.stderr)
        self.assertIn("rank 1", full.stderr.splitlines()[-1])

    def test_several_full_devices_give_one_line(self):
        full = self.train("full", "ddp", environment={"DTRAIN_FAKE": "memory=15000000"}, status=MEMORY)
        self.assertRegex(full.stderr, r"\A((\[\d\] )?dtrain: .*\n)*dtrain: error: [^\n]*memory on fake:[01] [^\n]*\n\Z")
        self.assertEqual(full.stderr.count("error: out"), 1)

    def test_a_device_that_is_lost_is_named(self):
        lost = self.train("one", "single", environment={"DTRAIN_FAKE": "lose-after=1000"}, status=DEVICE)
        self.error_of(lost, "device fake:0 was lost", "uncorrectable ECC error")
        self.error_of(lost, "--resume auto")
        for layout in ("ddp", "dp"):
            with self.subTest(layout):
                environment = {"DTRAIN_FAKE": "late lose-after=1000 device=1"}
                lost = self.train(layout, layout, environment=environment, status=DEVICE)
                self.assertIn("device fake:1 was lost", lost.stderr)
                self.assertIn("rank 1", lost.stderr.splitlines()[-1])

    def test_a_device_error_without_device_loss_is_named(self):
        for code, status, parts in ((2, MEMORY, ("fake:0", "--recompute level")), (700, INTERNAL, ("device fake:0", "illegal memory access"))):
            with self.subTest(code):
                found = self.train(str(code), "single", environment={"DTRAIN_FAKE": f"lose-after=1000 error={code}"}, status=status)
                self.error_of(found, *parts)
                self.assertNotIn("lost", found.stderr)

    def test_generate_names_the_missing_device_memory(self):
        flags = ["--from", on_cpu("single"), "--max-tokens", "30", "--device", "fake"]
        for setting, status, parts in (("memory=1000", MEMORY, ("memory on fake:0", "--device cpu")),
                                       ("lose-after=200", DEVICE, ("device fake:0", "--device cpu"))):
            found = run(FAKE, "generate", *flags, environment={"DTRAIN_FAKE": setting}, status=status)
            found.stderr = found.stderr.splitlines(keepends=True)[-1]  # after the memory
            self.error_of(found, *parts)


class Missing(FolderTest):
    def test_unsupported_graphs_are_rejected(self):
        self.refused(USAGE, "--compile", "--compile", "--device", "fake", "--strategy", "mp", program=FAKE, parts=["--pp 2"])
        for flags, part in ((["--kernels", "plain"], "--kernels plain"), (["--dtype", "float16"], "float16")):
            self.refused(USAGE, "--compile", "--compile", *flags, parts=[part])

    def refused(self, status, part, *flags, program=DTRAIN, ranks=1, parts=()):
        result = run(*launched(ranks, "train", "--data", GOLDEN / "text.bin", "--seq-len", "16", "--run-dir", self.folder / "run",
                               *flags, program=program), status=status)
        error_line(result.stderr, part, *parts)
        self.assertFalse((self.folder / "run").exists())

    def test_a_run_device_missing_in_this_build_is_named(self):
        run_dir = self.folder / "run"
        train(run_dir, "single", "--device", "fake", "--steps", "2")
        flags = ["--run-dir", run_dir, "--resume", "auto", "--steps", "4"]
        result = run(DTRAIN, *flags, status=USAGE)
        assert_names(result.stderr, f"{run_dir}/config.json", "--device fake", "--device cpu")
        run(DTRAIN, *flags, "--device", "cpu")

    def test_a_missing_device_is_named(self):
        self.refused(USAGE, '"fake"', "--device", "fake", parts=["--device", "auto, cpu"])
        self.refused(USAGE, "auto, cpu, cuda", "--device", "../x")
        self.refused(USAGE, "ranks 0 and 1", "--device", "fake:0", "--strategy", "ddp", program=FAKE, ranks=2, parts=["fake:0"])
        for strategy in ("dp", "mp"):
            self.refused(USAGE, "--device fake:0", "--device", "fake:0", "--strategy", strategy, program=FAKE,
                         parts=[f"--strategy {strategy}", "--device fake", "--devices"])
        self.refused(USAGE, "--local-ranks", "--device", "fake", "--strategy", "dp", "--local-ranks", "9", "--global-batch", "9", program=FAKE)
        self.refused(USAGE, "--offload all", "--device", "fake", "--offload", "disk:/tmp", program=FAKE)
        self.refused(DEVICE, "--device fake:9", "--device", "fake:9", program=FAKE, parts=["8 devices", "0 to 7"])

    def test_a_plugin_of_another_dtrain_is_named(self):
        copy = self.folder / "copy"
        for file in ("bin/dtrain", "lib/libdtrain.so"):
            (copy / file).parent.mkdir(parents=True)
            shutil.copy(BUILD / "fake" / file, copy / file)
        shutil.copy("/lib/x86_64-linux-gnu/libm.so.6", copy / "lib" / "libdtrain_old.so")  # without a plugin's entry point
        torch = next(pathlib.Path(os.environ["DTRAIN_SOURCE_DIR"], ".deps").rglob("torch/lib"))
        result = run(*launched(1, *WORK, "--run-dir", self.folder / "run", "--device", "old", program=copy / "bin" / "dtrain"),
                     status=DEVICE, environment={"LD_LIBRARY_PATH": str(torch)})
        error_line(result.stderr, "libdtrain_old.so", "scripts/build.sh dtrain_old")


if __name__ == "__main__":
    unittest.main()
