// The files that are named to become tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dtrain::data {

/// Files as they are named, and folders' regular files recursively, sorted by path: without empty
/// ones, links, and files and folders whose name begins with a dot.
///
/// Throws: Error{usage} where that gives no file; Error{data} for a folder that cannot be read.
[[nodiscard]] std::vector<std::string> list_inputs(const std::vector<std::string>& named);

/// Bytes of all files, those that are missing left out.
[[nodiscard]] std::int64_t total_bytes(const std::vector<std::string>& files);

}  // namespace dtrain::data
