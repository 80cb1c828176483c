// Backends that come in a shared object of their own, opened when one is asked for.
#pragma once

#include <memory>

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

}  // namespace dtrain::comm

/// The entry of a plugin.
extern "C" dtrain::comm::BackendPlugin& dtrain_backend_plugin();
