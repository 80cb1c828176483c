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

/// Where libdtrain.so and what is opened beside it lie, seen from the program: lib/dtrain as
/// cmake/Install.cmake makes it, or a build's lib.
[[nodiscard]] std::string library_folder_of_program();

/// Opens a shared object of library_folder_of_program() whose symbols, and those of what it links,
/// are for itself alone, before equal ones of the process: two versions of protobuf do not mix.
///
/// Threads: any.
[[nodiscard]] PluginFile open_apart(const std::string& file_name, const char* entry);

}  // namespace dtrain::base
