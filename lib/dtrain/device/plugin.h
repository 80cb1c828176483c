// Devices beside the CPU: each comes in a shared object of its own, opened when it is asked for.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "dtrain/comm/world.h"
#include "dtrain/config/values/values.h"

namespace dtrain::device {

/// What an error of a device means to a run.
enum class Failure { device_lost, out_of_memory, other };

/// Implemented by a shared object libdtrain_NAME.so, which registers the kernels of our operators
/// for its devices when it is loaded, and gives its only Plugin through its entry.
///
/// Threads: any.
class Plugin {
 public:
  virtual ~Plugin() = default;

  [[nodiscard]] virtual c10::DeviceType type() const = 0;
  /// The devices of this process.
  ///
  /// Throws: Error{device} saying why there is none: the driver is missing or too old, or somebody
  ///         hides them.
  [[nodiscard]] virtual std::int64_t count() = 0;
  /// Its name and memory, for the start table.
  [[nodiscard]] virtual std::string describe(c10::Device device) = 0;
  /// What tells it from every other device that ranks of a job may have.
  [[nodiscard]] virtual std::string identity(c10::Device device) = 0;
  /// What c10::AcceleratorError::get_error_code() of its devices means.
  [[nodiscard]] virtual Failure failure_of(int error_code) const = 0;
  /// Makes `device` that of the calling thread.
  virtual void use(c10::Device device) = 0;
  /// Bytes of the device that nobody uses now; empty if it cannot tell.
  [[nodiscard]] virtual std::optional<std::int64_t> free_memory(c10::Device device) = 0;
  /// Bounds what tensors of this process take on the device; more is LibTorch's OutOfMemoryError.
  virtual void limit_memory(c10::Device device, std::int64_t bytes) = 0;
  /// A world of the same ranks whose groups move tensors between their `device`s. host: serves as
  /// its control plane.
  ///
  /// Collective: every rank of `host`.
  /// Throws:     Error{device} where ranks cannot communicate from their devices.
  [[nodiscard]] virtual std::shared_ptr<comm::World> make_world(
      std::shared_ptr<comm::World> host, c10::Device device, const comm::GroupOptions& options) = 0;
};

/// The plugin of this name, which is loaded once and stays. Must come before anything else asks
/// LibTorch for such a device.
///
/// Throws: Error{device} naming the file that cannot be loaded and why.
[[nodiscard]] Plugin& plugin(const std::string& kind);

/// The device of this name, without an index number 0; it is the calling thread's from now on.
///
/// Throws: Error{device} where there is no such device; as plugin().
[[nodiscard]] c10::Device open(const config::DeviceName& name);

/// `host` itself for the CPU, else Plugin::make_world on the device of this name. Without an index
/// it is number `local_rank`, which begins anew where this process sees fewer: a launcher may show
/// each rank a device of its own.
///
/// Collective: every rank of `host`.
/// Throws:     Error{usage} naming two ranks on one device, unless options.shares_devices; as
/// open().
[[nodiscard]] std::shared_ptr<comm::World> world_on(const config::DeviceName& name,
                                                    std::int64_t local_rank,
                                                    std::shared_ptr<comm::World> host,
                                                    const comm::GroupOptions& options);

}  // namespace dtrain::device

/// The entry of a plugin. Its number changes with Plugin, comm::World and comm::ProcessGroup.
extern "C" dtrain::device::Plugin& dtrain_device_plugin_2();
