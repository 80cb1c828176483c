// A fake accelerator: LibTorch's PrivateUse1 key as devices "fake:0", "fake:1", ... that run on the
// CPU and report what would be a defect on a GPU.
//
// - The host cannot touch device memory: a stray access ends the process by SIGSEGV, after a line
// on
//   standard error that names the block. Fresh memory holds NaN; addresses are never used twice.
// - Kernels are the CPU's, with the CPU's bits. They run when they are launched, or late.
// - They refuse tensors that LibTorch's CUDA kernels refuse (cuda_operators.h).
// - Vector clocks find kernels of two streams that use the same bytes in no order (take_races()).
// - Pinned host memory is out of bounds while an asynchronous copy uses it.
// - Waits of the host are counted by cause (counters.h); failures come on demand (faults.h).
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

/// When a kernel runs.
enum class Execution {
  /// Inside its launch, once the kernels that it waits for have run.
  prompt,
  /// When the host waits for its device: one kernel at a time, drawn at random among all that need
  /// not wait for another. A kernel whose output shape only running it tells runs in its launch. A
  /// host that never waits is overtaken after 50 ms, so that another rank need not wait for it.
  late
};

struct Options {
  Execution execution = Execution::prompt;
  /// Decides the order of late kernels. The same seed gives the same order where one host thread
  /// launches all kernels and waits in time.
  std::uint64_t seed = 1;
  /// Hardware queues of a device, which its streams take in turn, beginning anew when the options
  /// are set: a kernel or wait of one stream holds up what others submit behind it in their queue,
  /// as on a GPU. 0: as many as streams. With Execution::late alone.
  std::size_t queues = 0;
  /// A race is an error of the host's next synchronisation, for programs that no test looks into.
  bool races_are_errors = false;
};

/// Registers the devices with LibTorch, for the rest of the process; again: does nothing.
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

/// A kernel's function: it gets CPU tensors over the memory of the tensors at launch.
using Function = std::function<void(const std::vector<at::Tensor>& reads,
                                    const std::vector<at::Tensor>& writes)>;

/// Puts a kernel of our own on a stream. It may wait for kernels of other devices, as a collective
/// does: kernels of other streams run meanwhile, also in prompt execution.
///
/// Async:   returns before it has run. What it throws is the error of the host's next
///          synchronisation with the device.
/// Throws:  c10::AcceleratorError if the device is lost.
/// Threads: `function` holds no device tensors of its own: it runs and is destroyed on a thread of
/// the stream. `name` is a literal.
void launch(const c10::Stream& stream, const char* name, const std::vector<at::Tensor>& reads,
            const std::vector<at::Tensor>& writes, Function function);

}  // namespace dtrain::testing::fake

/// For a program that opens this library: install(), then settings as words with spaces between:
/// "late", "races-are-errors", "seed=N", "queues=N"; "memory=BYTES", "lose-after=KERNELS" and
/// "error=CODE" (faults.h), for every device or with "device=N" for that one. Returns null, or a
/// line that says what is wrong, which stays valid.
///
/// Threads: one, as install().
extern "C" const char* dtrain_fake_device_open(const char* settings);
