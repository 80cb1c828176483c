// Reads the strings of JSON.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace dtrain::data {

/// What is wrong with a record, without its place.
class RecordFault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The text that a string stands for. Half of a surrogate pair becomes U+FFFD.
///
/// raw: what stands between the string's quotes; it does not end within an escape of two
///      characters.
///
/// Throws: RecordFault for bytes that are not UTF-8, control characters and unknown escapes.
[[nodiscard]] std::string unescaped(std::string_view raw);

}  // namespace dtrain::data
