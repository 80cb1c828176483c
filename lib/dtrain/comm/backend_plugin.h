// Backends that come in a shared object of their own, opened when one is asked for.
#pragma once

#include <memory>
#include <string>

#include "dtrain/comm/create_world.h"

namespace dtrain::comm {

/// The interface between libdtrain.so and such plugins; changes with WorldOptions, World and Transport.
inline constexpr int kBackendInterface = 2;

/// Implemented by a shared object libdtrain_NAME.so, which gives its only BackendPlugin through
/// dtrain_backend_plugin().
///
/// Threads: any.
class BackendPlugin {
 public:
  virtual ~BackendPlugin() = default;

  /// kBackendInterface as the plugin was built with it.
  [[nodiscard]] virtual int interface() const = 0;
  /// As comm::create_world.
  [[nodiscard]] virtual std::shared_ptr<World> create_world(const WorldOptions& options) = 0;
};

/// The world of the plugin of this name.
///
/// Throws: Error{usage} naming the file that cannot be loaded, why, and what to do; as
///         create_world.
[[nodiscard]] std::shared_ptr<World> create_plugin_world(const std::string& name,
                                                         const WorldOptions& options);

}  // namespace dtrain::comm

/// The entry of a plugin.
extern "C" dtrain::comm::BackendPlugin& dtrain_backend_plugin();
