// Expands input paths: lists folders recursively, follows links, counts what it skips.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dtrain::data {

/// Files to read, in order, and counts of skipped or followed folder entries.
struct InputFiles {
  std::vector<std::string> paths{};
  std::int64_t num_links = 0;         ///< symbolic links that were followed
  std::int64_t num_known_links = 0;   ///< links to files and folders already listed: skipped
  std::int64_t num_hidden = 0;        ///< names that begin with a dot: skipped
  std::int64_t num_empty = 0;         ///< empty files: skipped
  std::int64_t num_broken_links = 0;  ///< link loops included: skipped
  std::int64_t num_special = 0;       ///< FIFOs, sockets and devices: skipped

  void add(InputFiles more);
  /// Summarizes the counts: "3 links followed, 2 hidden entries skipped"; empty if all are 0.
  [[nodiscard]] std::string notes() const;
};

/// Lists the named files; replaces a folder by all files below it, sorted by path. Follows links to
/// files and folders, but lists a file only once even if links also lead to it.
///
/// Throws: Error{usage} if the list is empty, or standard input is named twice; Error{data} for a
///         folder that cannot be read.
[[nodiscard]] InputFiles list_inputs(const std::vector<std::string>& named);

/// Returns the total size in bytes of the files that exist; 0 if standard input is among them.
[[nodiscard]] std::int64_t total_bytes(const std::vector<std::string>& files);

}  // namespace dtrain::data
