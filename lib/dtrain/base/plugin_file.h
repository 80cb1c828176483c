// Shared objects of ours that are opened when they are asked for.
#pragma once

#include <string>

namespace dtrain::base {

/// What opening a plugin gave.
struct PluginFile {
  std::string path;       ///< empty: the folder of libdtrain.so is not known
  void* entry = nullptr;  ///< its function; null: it was not opened
  std::string obstacle;   ///< why not
};

/// Opens libdtrain_NAME.so beside the library that this code is in, for good and with its symbols
/// for all, and finds `entry` in it.
///
/// Threads: any.
[[nodiscard]] PluginFile open_plugin(const std::string& name, const char* entry);

}  // namespace dtrain::base
