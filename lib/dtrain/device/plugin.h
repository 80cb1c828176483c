// Device plugins: each accelerator is a shared object, loaded when --device names it.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "dtrain/comm/world.h"
#include "dtrain/config/values/values.h"

namespace dtrain::device {

/// The kind of a device error, which decides the exit status.
enum class Failure { device_lost, out_of_memory, other };

/// The interface that a shared object libdtrain_NAME.so implements. Loading it registers its
/// devices' kernels for our operators; its entry function returns its only Plugin.
///
/// Threads: any.
class Plugin {
 public:
  virtual ~Plugin() = default;

  [[nodiscard]] virtual c10::DeviceType type() const = 0;
  /// The number of devices visible to this process.
  ///
  /// Throws: Error{device} saying why there is none: the driver is missing or too old, or an
  ///         environment variable hides the devices.
  [[nodiscard]] virtual std::int64_t count() = 0;
  /// Name and memory of `device`, for the start table.
  [[nodiscard]] virtual std::string describe(c10::Device device) = 0;
  /// Identifies `device` among all devices of a job, on any machine.
  [[nodiscard]] virtual std::string identity(c10::Device device) = 0;
  /// Classifies c10::AcceleratorError::get_error_code().
  [[nodiscard]] virtual Failure failure_of(int error_code) const = 0;
  /// Makes `device` the calling thread's current device.
  virtual void use(c10::Device device) = 0;
  /// Free bytes of device memory; empty if unknown.
  [[nodiscard]] virtual std::optional<std::int64_t> free_memory(c10::Device device) = 0;
  /// Limits the device memory of this process's tensors; beyond it LibTorch throws
  /// OutOfMemoryError.
  virtual void limit_memory(c10::Device device, std::int64_t bytes) = 0;
  /// Creates a world of the same ranks whose groups communicate device tensors. host: becomes its
  /// control plane.
  ///
  /// Collective: every rank of `host`.
  /// Throws:     Error{device} if the ranks' devices cannot communicate.
  [[nodiscard]] virtual std::shared_ptr<comm::World> make_world(
      std::shared_ptr<comm::World> host, c10::Device device, const comm::GroupOptions& options) = 0;
};

/// Returns the plugin of this name, loading it at the first call; it stays loaded. Call it before
/// anything else uses such a device through LibTorch.
///
/// Throws: Error{device} naming the file that cannot be loaded and why.
[[nodiscard]] Plugin& plugin(const std::string& kind);

/// Returns the device of this name (index 0 if it has none) and makes it the calling thread's
/// current device.
///
/// Throws: Error{device} if there is no such device; as plugin().
[[nodiscard]] c10::Device open(const config::DeviceName& name);

/// Returns `host` itself for the CPU, otherwise Plugin::make_world on the named device. A name
/// without an index selects device local_rank modulo the device count, since a launcher may make a
/// single device visible to each rank.
///
/// Collective: every rank of `host`.
/// Throws:     Error{usage} naming two ranks on one device, unless options.shares_devices; as
/// open().
[[nodiscard]] std::shared_ptr<comm::World> make_device_world(const config::DeviceName& name,
                                                             std::int64_t local_rank,
                                                             std::shared_ptr<comm::World> host,
                                                             const comm::GroupOptions& options);

}  // namespace dtrain::device

/// The entry function of a plugin; the number is the version of its ABI, which includes Plugin,
/// comm::World and comm::ProcessGroup.
extern "C" dtrain::device::Plugin& dtrain_device_plugin_2();
