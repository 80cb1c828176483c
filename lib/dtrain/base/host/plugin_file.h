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

/// Loads libdtrain_NAME.so from the folder of libdtrain.so with global symbols (RTLD_GLOBAL), and
/// looks up the symbol `entry`. The plugin is never unloaded.
///
/// Threads: any.
[[nodiscard]] PluginFile open_plugin(const std::string& name, const char* entry);

/// The folder of libdtrain.so and its plugins, derived from the program's path: lib/dtrain in an
/// installation (cmake/Install.cmake), lib in a build folder.
[[nodiscard]] std::string library_folder_of_program();

/// Loads a shared library from library_folder_of_program(). Its own symbols are private and take
/// precedence over the process's (RTLD_LOCAL, RTLD_DEEPBIND), so that two versions of protobuf can
/// coexist.
///
/// Threads: any.
[[nodiscard]] PluginFile open_isolated(const std::string& file_name, const char* entry);

}  // namespace dtrain::base
