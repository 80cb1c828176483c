// Streams of kernels, who waits for whom, and the calling thread's current ones.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "support/fake_device/counters.h"
#include "support/fake_device/fake_device.h"
#include "support/fake_device/history.h"

namespace dtrain::testing::fake {

/// A kernel's place in the order: it runs after all kernels of `before`, which programs may rely
/// on, and of `in_front`, which they may not: the hardware queue happens to hold those first.
struct Ticket {
  StreamNumber stream = 0;
  std::uint64_t tick = 0;
  Clock before;
  Clock in_front;

  /// Including this kernel.
  [[nodiscard]] Clock after() const {
    Clock clock = before;
    clock.raise(stream, tick);
    return clock;
  }
};

/// Why the host waits for a device; it is the counter to raise.
using Cause = std::uint64_t Synchronisations::*;

/// All streams of all devices. A stream's kernels run one after the other: in the thread that
/// launches them, or in a thread of the stream.
///
/// Threads: any.
class Streams {
 public:
  struct Task {
    std::function<void()> run;
    /// It may wait for other tasks: others of its device run meanwhile, and it need not be waited
    /// for to start.
    bool may_wait = false;
  };

  Streams();

  [[nodiscard]] StreamNumber create(c10::DeviceIndex device);
  [[nodiscard]] c10::DeviceIndex device_of(StreamNumber stream) const;

  /// The next kernel's place on a stream. Exactly one of finish() and submit() must follow.
  ///
  /// Throws:  AcceleratorError if the device is lost.
  [[nodiscard]] Ticket take(StreamNumber stream);
  /// The kernel has run, or never will.
  void finish(const Ticket& ticket);
  /// The kernel runs later; its task is destroyed before others learn that it has run.
  void submit(const Ticket& ticket, Task task);

  /// Everything that was launched on a stream, or on a device, or that the host knows has run.
  [[nodiscard]] Clock launched(StreamNumber stream) const;
  [[nodiscard]] Clock launched_on(c10::DeviceIndex device) const;
  [[nodiscard]] Clock known_to_host() const;
  /// Whatever is launched on the stream from now on runs after `clock`.
  void order(StreamNumber stream, const Clock& clock);

  /// Whether these kernels have run.
  [[nodiscard]] bool has_run(const Clock& clock) const;
  /// Blocks until they have. A device's need: nobody learns that they have.
  void wait(const Clock& clock);
  /// wait(); then the host knows it, and pinned memory is released.
  void learn(const Clock& clock);
  /// learn(), as a counted synchronisation with a device.
  ///
  /// Throws:  the first error of a kernel of the device since the last one; AcceleratorError if the
  ///          device is lost; c10::Error for races, with Options::races_are_errors.
  void synchronise(const Clock& clock, c10::DeviceIndex device, Cause cause);

  /// While no kernel is under way.
  void set_options(const Options& options);
  [[nodiscard]] Options options() const;

  void report_race(std::string race);
  [[nodiscard]] std::vector<std::string> take_races();

 private:
  struct Queued {
    Ticket ticket;
    Task task;
    int threads = 1;
    std::chrono::steady_clock::time_point since;
  };
  struct Stream {
    StreamNumber number = 0;
    c10::DeviceIndex device = 0;
    std::size_t turn = 0;  // among the device's streams
    Clock launched;
    std::uint64_t done = 0;
    std::deque<Queued> queue;
    bool has_worker = false;  // a thread, which ends when there is nothing to do for a while
  };
  struct Device {
    /// The stream whose turn it is to run a kernel, or null.
    Stream* turn = nullptr;
    std::mt19937_64 random;
    std::exception_ptr error;
    std::size_t num_streams = 0;  // since the options were set
    std::vector<Clock> queues;    // what was submitted to each; empty: each stream has its own
  };

  // All with the lock held, but work().
  /// The hardware queue that the stream shares; null if it has its own.
  [[nodiscard]] Clock* queue_of(const Stream& stream);
  [[nodiscard]] bool has_run_locked(const Clock& clock) const;
  [[nodiscard]] bool may_run(const Stream& stream, bool is_awaited) const;
  void choose(c10::DeviceIndex index);
  [[nodiscard]] bool is_awaited(c10::DeviceIndex device) const;
  /// None: there was nothing to do for a while.
  [[nodiscard]] std::optional<Queued> next_task(Stream& stream, std::unique_lock<std::mutex>& lock);
  void work(Stream& stream);
  Device& device_at(c10::DeviceIndex index) { return devices_[static_cast<std::size_t>(index)]; }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::array<Device, kDevices> devices_;
  Clock host_;
  /// Of hosts that wait() now.
  std::list<const Clock*> awaited_;
  Options options_;
  std::vector<std::string> races_;
};

/// The process's streams; never freed, since their threads never end.
Streams& streams();

/// Each thread starts with device 0 and the devices' default streams.
///
/// Throws:  c10::Error if there is no such device.
[[nodiscard]] c10::DeviceIndex current_device();
c10::DeviceIndex exchange_current_device(c10::DeviceIndex device);
[[nodiscard]] StreamNumber current_stream(c10::DeviceIndex device);
StreamNumber exchange_current_stream(c10::DeviceIndex device, StreamNumber stream);

/// Makes a device the current one while it lives.
class OnDevice {
 public:
  explicit OnDevice(c10::DeviceIndex device) : before_(exchange_current_device(device)) {}
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { exchange_current_device(before_); }

 private:
  c10::DeviceIndex before_;
};

}  // namespace dtrain::testing::fake
