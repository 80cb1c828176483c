// Strict reader of files that contain one JSON object. Rejects repeated keys and numbers out of
// range, which the JSON library would silently accept.
#pragma once

#include <string>
#include <string_view>

#include "dtrain/config/input/assign.h"

namespace dtrain::config {

/// Reads a regular file of at most 1 MiB. named_by: the flag or file that names it, for messages.
///
/// Throws: Error{usage} naming the file and why it cannot be read.
[[nodiscard]] std::string read_text(const std::string& path, std::string_view named_by);

/// Parses a JSON object, which may contain comments. origin: for messages.
///
/// Throws: Error{usage} naming origin, position and key: not JSON in UTF-8, not an object, nested too
///         deeply, a key that appears twice in an object, a number out of the range of float64.
[[nodiscard]] Json parse_object(std::string_view text, const std::string& origin);

}  // namespace dtrain::config
