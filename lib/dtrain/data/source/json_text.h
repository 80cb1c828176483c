// Extracts one field of a JSON object without validating the others.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "dtrain/data/source/internal/json_string.h"

namespace dtrain::data {

/// The value of an object's field.
struct FieldText {
  std::optional<std::string> text{};  ///< empty: the field is missing or null
  bool is_null = false;               ///< the field is present and null
};

/// Reads the text of a field: a string, or a list of strings, joined by newlines.
///
/// Only the object's brackets and this field must be valid: other fields may hold invalid UTF-8,
/// NaN and any nesting depth. If a name occurs more than once, the last value is used. Half of a
/// surrogate pair becomes U+FFFD.
///
/// path: the field's name, or names separated by dots. "content.text" is the field of exactly that
///       name if it exists; otherwise the field "text" of the object in the field "content".
///
/// Throws: RecordFault if the record is not an object or the field is not text.
[[nodiscard]] FieldText field_text(std::string_view record, std::string_view path);

/// Lists an object's string fields, including those of nested objects, for messages: "title,
/// content.text" or "none". The object may be truncated.
[[nodiscard]] std::string text_fields(std::string_view record);

/// Returns whether a text begins like JSON: with an object that is empty or begins with a member,
/// or with an array of objects, arrays or strings, possibly after nulls. A byte order mark is
/// skipped.
///
/// start: the first few KiB of the text, or all of it. A string that is cut off at the end of
///        `start` counts as a string if it has no newline so far.
[[nodiscard]] bool begins_as_json(std::string_view start);

/// The UTF-8 byte order mark, which is not part of a text.
inline constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

/// Drops the byte order mark from the beginning of a file.
[[nodiscard]] inline std::string_view without_byte_order_mark(std::string_view start) {
  if (start.starts_with(kByteOrderMark)) start.remove_prefix(kByteOrderMark.size());
  return start;
}

/// White space between JSON values.
inline constexpr std::string_view kJsonSpace = " \t\r\n";

}  // namespace dtrain::data
