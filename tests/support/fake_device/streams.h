// Streams and their ordering, and the calling thread's current device and streams.
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

/// A kernel's position in the order. It runs after all kernels in `before`, an ordering on which
/// programs may rely, and after those in `in_front`, which are ahead of it in the hardware queue
/// only by chance.
struct Ticket {
  StreamNumber stream = 0;
  std::uint64_t tick = 0;
  Clock before;
  Clock in_front;

  /// The clock after this kernel.
  [[nodiscard]] Clock after() const {
    Clock clock = before;
    clock.raise(stream, tick);
    return clock;
  }
};

/// The cause of a host wait, as the counter to increment.
using Cause = std::uint64_t Synchronisations::*;

/// All streams of all devices. A stream's kernels run sequentially, in the thread that launches
/// them or in a thread of the stream.
///
/// Threads: any.
class Streams {
 public:
  struct Task {
    std::function<void()> run;
    /// True if the task may wait for other tasks. Other tasks of its device then run meanwhile, and
    /// it may start before the host waits for it.
    bool may_wait = false;
  };

  Streams();

  [[nodiscard]] StreamNumber create(c10::DeviceIndex device);
  [[nodiscard]] c10::DeviceIndex device_of(StreamNumber stream) const;

  /// Returns the ticket of the next kernel on a stream. Exactly one of finish() and submit() must
  /// follow.
  ///
  /// Throws:  AcceleratorError if the device is lost.
  [[nodiscard]] Ticket take(StreamNumber stream);
  /// Marks the kernel as run, also if it will never run.
  void finish(const Ticket& ticket);
  /// Queues the kernel. Its task is destroyed before the kernel counts as run.
  void submit(const Ticket& ticket, Task task);

  /// Return the kernels that were launched on a stream, that were launched on a device, or that the
  /// host knows to have run.
  [[nodiscard]] Clock launched(StreamNumber stream) const;
  [[nodiscard]] Clock launched_on(c10::DeviceIndex device) const;
  [[nodiscard]] Clock known_to_host() const;
  /// Orders all future launches on the stream after `clock`.
  void order(StreamNumber stream, const Clock& clock);

  /// True if these kernels have run.
  [[nodiscard]] bool has_run(const Clock& clock) const;
  /// Blocks until these kernels have run. For waits of devices: does not change known_to_host().
  void wait(const Clock& clock);
  /// As wait(); then adds the kernels to known_to_host() and releases pinned memory.
  void learn(const Clock& clock);
  /// As learn(); also counts a synchronization with the device.
  ///
  /// Throws:  the first error of the device's kernels since the last synchronization;
  ///          AcceleratorError if the device is lost; c10::Error for races, with
  ///          Options::races_are_errors.
  void synchronise(const Clock& clock, c10::DeviceIndex device, Cause cause);

  /// REQUIRES: no kernel is in flight.
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
    std::size_t turn = 0;  // index among the device's streams
    Clock launched;
    std::uint64_t done = 0;
    std::deque<Queued> queue;
    bool has_worker = false;  // has a thread, which ends after a period without work
  };
  struct Device {
    /// The stream that runs the next kernel, or null.
    Stream* turn = nullptr;
    std::mt19937_64 random;
    std::exception_ptr error;
    std::size_t num_streams = 0;  // since the options were set
    std::vector<Clock> queues;    // kernels submitted to each; empty if no queue is shared
  };

  // All members below except work() require the lock.
  /// Returns the hardware queue that the stream shares; null if it has its own.
  [[nodiscard]] Clock* queue_of(const Stream& stream);
  [[nodiscard]] bool has_run_locked(const Clock& clock) const;
  [[nodiscard]] bool may_run(const Stream& stream, bool is_awaited) const;
  void choose(c10::DeviceIndex index);
  [[nodiscard]] bool is_awaited(c10::DeviceIndex device) const;
  /// Returns the next task; empty after a period without work.
  [[nodiscard]] std::optional<Queued> next_task(Stream& stream, std::unique_lock<std::mutex>& lock);
  void work(Stream& stream);
  Device& device_at(c10::DeviceIndex index) { return devices_[static_cast<std::size_t>(index)]; }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::array<Device, kDevices> devices_;
  Clock host_;
  /// Clocks that host threads currently wait for.
  std::list<const Clock*> awaited_;
  Options options_;
  std::vector<std::string> races_;
};

/// The process's streams; never freed, because their threads may outlive main.
Streams& streams();

/// The calling thread's current device and streams; initially device 0 and the default streams.
///
/// Throws:  c10::Error if there is no such device.
[[nodiscard]] c10::DeviceIndex current_device();
c10::DeviceIndex exchange_current_device(c10::DeviceIndex device);
[[nodiscard]] StreamNumber current_stream(c10::DeviceIndex device);
StreamNumber exchange_current_stream(c10::DeviceIndex device, StreamNumber stream);

/// Makes a device current during its lifetime.
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
