// Decodes JSON strings.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace dtrain::data {

/// Thrown for an invalid JSON record; the message does not state where the record is.
class RecordFault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Decodes the escapes of a string. Half of a surrogate pair becomes U+FFFD.
///
/// raw: the bytes between the quotes; must not end with a lone backslash.
///
/// Throws: RecordFault for bytes that are not UTF-8, control characters and unknown escapes.
[[nodiscard]] std::string unescaped(std::string_view raw);

}  // namespace dtrain::data
