// Files that hold one JSON object: reads them, and refuses what the parser would pass over in
// silence.
#pragma once

#include <string>
#include <string_view>

#include "dtrain/config/input/assign.h"

namespace dtrain::config {

/// The text of a regular file of at most 1 MiB; `named_by` names its flag or file in messages.
///
/// Throws: Error{usage} naming the file and why it cannot be read.
[[nodiscard]] std::string read_text(const std::string& path, std::string_view named_by);

/// The object that `text` holds, comments removed; `origin` names the text in messages.
///
/// Throws: Error{usage} naming origin, place and key: not JSON in UTF-8, no object, deep nesting, a
///         key that appears twice in an object, a number that a float64 cannot hold.
[[nodiscard]] Json parse_object(std::string_view text, const std::string& origin);

}  // namespace dtrain::config
