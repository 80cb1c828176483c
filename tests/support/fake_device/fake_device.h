// A fake accelerator: LibTorch's PrivateUse1 key as devices "fake:0", "fake:1", ... that run on the
// CPU and report what would be a defect on a GPU.
//
// - The host cannot access device memory: a stray access ends the process by SIGSEGV, after a line
// on
//   standard error that names the block. Fresh memory holds NaN; addresses are never used twice.
// - Kernels are the CPU's, with the CPU's bits. They run at their launch, or late.
// - They reject tensors that LibTorch's CUDA kernels reject (cuda_operators.h).
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
/// Their type.
inline constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

/// When kernels run.
enum class Execution {
  /// At launch, after the kernels that they wait for.
  prompt,
  /// When the host waits for the device: one kernel at a time, chosen at random among those that need
  /// not wait for another. A kernel whose output shape depends on values runs at launch. If the
  /// host does not wait, kernels run after 50 ms, so that another rank need not wait for it.
  late
};

struct Options {
  Execution execution = Execution::prompt;
  /// Seeds the order of late kernels. The same seed gives the same order if one host thread
  /// launches all kernels and waits in time.
  std::uint64_t seed = 1;
  /// Hardware queues per device, assigned to its streams round-robin, restarting when the options
  /// are set: a kernel or wait of one stream blocks what others submit behind it in their queue,
  /// as on a GPU. 0: one per stream. Only with Execution::late.
  std::size_t queues = 0;
  /// Reports races as errors of the host's next synchronization, for programs without a test around.
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

/// The races found since the last call, one line each: the block, both kernels, their streams.
///
/// Threads: any.
[[nodiscard]] std::vector<std::string> take_races();

/// A kernel's function; it receives CPU tensors over the memory of the launch's tensors.
using Function = std::function<void(const std::vector<at::Tensor>& reads,
                                    const std::vector<at::Tensor>& writes)>;

/// Launches a custom kernel on a stream. It may wait for kernels of other devices, as a collective
/// does: kernels of other streams run meanwhile, even with prompt execution.
///
/// Async:   returns before it has run. What it throws is the error of the host's next
///          synchronisation with the device.
/// Throws:  c10::AcceleratorError if the device is lost.
/// Threads: `function` holds no device tensors of its own: it runs and is destroyed on a thread of
/// the stream. `name` is a literal.
void launch(const c10::Stream& stream, const char* name, const std::vector<at::Tensor>& reads,
            const std::vector<at::Tensor>& writes, Function function);

}  // namespace dtrain::testing::fake

/// For programs that load this library: calls install(), then applies space-separated settings:
/// "late", "races-are-errors", "seed=N", "queues=N"; "memory=BYTES", "lose-after=KERNELS" and
/// "error=CODE" (faults.h), for every device or with "device=N" for that one. Returns null, or a
/// message that says what is wrong and stays valid.
///
/// Threads: one, as install().
extern "C" const char* dtrain_fake_device_open(const char* settings);
