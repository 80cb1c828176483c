// The files that inputs name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dtrain::data {

/// Files to read, in order, and what folders held besides.
struct InputFiles {
  std::vector<std::string> paths{};
  std::int64_t num_links = 0;         ///< symbolic links that were followed
  std::int64_t num_known_links = 0;   ///< to files and folders that are read anyway: skipped
  std::int64_t num_hidden = 0;        ///< files and folders whose name begins with a dot: skipped
  std::int64_t num_empty = 0;         ///< skipped
  std::int64_t num_broken_links = 0;  ///< skipped, loops of links included
  std::int64_t num_special = 0;       ///< FIFOs, sockets and devices: skipped

  void add(InputFiles more);
  /// "2 hidden and 1 empty skipped, 3 links followed"; empty: folders held nothing but files.
  [[nodiscard]] std::string notes() const;
};

/// Inputs as they are named, and of folders the files in them and below, sorted by path. Links are
/// followed to files and folders; a file that a folder holds itself, or an earlier link has led to,
/// is not read a second time.
///
/// Throws: Error{usage} where that gives no file, or standard input is named twice; Error{data} for
///         a folder that cannot be read.
[[nodiscard]] InputFiles list_inputs(const std::vector<std::string>& named);

/// Bytes of all files, those that are missing left out; 0: standard input is among them.
[[nodiscard]] std::int64_t total_bytes(const std::vector<std::string>& files);

}  // namespace dtrain::data
