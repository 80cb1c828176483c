// A fake accelerator: registers devices "fake:0", "fake:1", ... with LibTorch's PrivateUse1 key.
// They run on the CPU and report errors that would be defects on a GPU.
//
// - The host cannot access device memory: a stray access ends the process by SIGSEGV, after a line
//   on standard error that names the block. Fresh memory holds NaN; addresses are never reused.
// - Kernels are LibTorch's CPU kernels, with the same bits. They run at their launch, or later.
// - Kernels reject tensors that LibTorch's CUDA kernels reject (cuda_operators.h).
// - Vector clocks detect unordered accesses of two streams to the same bytes (take_races()).
// - Pinned host memory is inaccessible while an asynchronous copy uses it.
// - Host waits are counted by cause (counters.h); faults can be injected (faults.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace dtrain::testing::fake {

/// Number of devices.
inline constexpr c10::DeviceIndex kDevices = 8;
/// The devices' type.
inline constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

/// Determines when kernels run.
enum class Execution {
  /// At launch, after the kernels that they wait for.
  prompt,
  /// When the host waits for the device: one kernel at a time, selected at random from those that
  /// need not wait for another. A kernel whose output shape depends on values runs at launch. If
  /// the host does not wait, kernels run after 50 ms, so that they do not block another rank.
  late
};

struct Options {
  Execution execution = Execution::prompt;
  /// Seeds the order of late kernels. The same seed gives the same order if one host thread
  /// launches all kernels and waits in time.
  std::uint64_t seed = 1;
  /// Hardware queues per device; 0: one per stream. Used only with Execution::late. Streams are
  /// assigned to queues round-robin, beginning again when the options are set. As on a GPU, a
  /// kernel or wait of one stream blocks later submissions of other streams to the same queue.
  std::size_t queues = 0;
  /// Report races as errors of the host's next synchronization, for programs that run outside of a
  /// test.
  bool races_are_errors = false;
};

/// Registers the devices with LibTorch for the rest of the process; later calls are no-ops.
///
/// Throws:  c10::Error if address space or the PrivateUse1 key is taken.
/// Threads: one, before any other use of LibTorch's devices.
void install();

/// Waits for all kernels, then sets the options of all devices.
///
/// Threads: one, while no other launches kernels.
void set_options(const Options& options);

/// Returns the races found since the last call, one line each: the block, both kernels, their
/// streams.
///
/// Threads: any.
[[nodiscard]] std::vector<std::string> take_races();

/// A kernel's function; it receives CPU tensors over the memory of the launch's tensors.
using Function = std::function<void(const std::vector<at::Tensor>& reads,
                                    const std::vector<at::Tensor>& writes)>;

/// Launches a custom kernel on a stream. The kernel may wait for kernels of other devices, as a
/// collective does; kernels of other streams run meanwhile, even with prompt execution. name: a
/// string literal.
///
/// Async:   returns before the kernel has run. Its exception is thrown by the host's next
///          synchronisation with the device.
/// Throws:  c10::AcceleratorError if the device is lost.
/// Threads: `function` runs and is destroyed on a thread of the stream, so it must not hold device
///          tensors.
void launch(const c10::Stream& stream, const char* name, const std::vector<at::Tensor>& reads,
            const std::vector<at::Tensor>& writes, Function function);

}  // namespace dtrain::testing::fake

/// Calls install() and applies space-separated settings; for programs that load this library. The
/// settings are "late", "races-are-errors", "seed=N", "queues=N" and, from faults.h,
/// "memory=BYTES", "lose-after=KERNELS" and "error=CODE", for every device or, with "device=N", for
/// that one. Returns null on success, otherwise an error message, which stays valid.
///
/// Threads: one, as install().
extern "C" const char* dtrain_fake_device_open(const char* settings);
