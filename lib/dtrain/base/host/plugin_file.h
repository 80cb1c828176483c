// Opens dtrain's plugins, shared libraries that are loaded on demand.
#pragma once

#include <string>

namespace dtrain::base {

/// Outcome of opening a plugin.
struct PluginFile {
  std::string path;       ///< empty: the folder of libdtrain.so is unknown
  void* entry = nullptr;  ///< its entry function; null: opening failed
  std::string obstacle;   ///< why opening failed
};

/// Opens libdtrain_NAME.so in the folder of libdtrain.so, permanently and with global symbols, and
/// looks up `entry` in it.
///
/// Threads: any.
[[nodiscard]] PluginFile open_plugin(const std::string& name, const char* entry);

/// The folder of libdtrain.so and its plugins, relative to the program: lib/dtrain of an
/// installation (cmake/Install.cmake), or a build's lib.
[[nodiscard]] std::string library_folder_of_program();

/// Opens a shared library of library_folder_of_program() in a symbol scope of its own, which takes
/// precedence over the process's symbols, so that two versions of protobuf do not mix.
///
/// Threads: any.
[[nodiscard]] PluginFile open_isolated(const std::string& file_name, const char* entry);

}  // namespace dtrain::base
