// Reads one field of a JSON object, and takes the rest of it for granted.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "dtrain/data/source/internal/json_string.h"

namespace dtrain::data {

/// What an object has in a field.
struct FieldText {
  std::optional<std::string> text{};  ///< empty: the field is missing or null
  bool is_null = false;               ///< the field is there, and null
};

/// Reads the text of a field: a string, or the strings of a list, joined by newlines.
///
/// Only the object's outline and this field must be valid: other fields may hold bytes that are not
/// UTF-8, NaN, and any depth. Of a name that is given twice the last value counts, and half of a
/// surrogate pair becomes U+FFFD.
///
/// path: the field's name, or names separated by dots: "content.text" is the field of that very
///       name or, without one, the field text of the object in the field content.
///
/// Throws: RecordFault for what is no object, or a field that is no text.
[[nodiscard]] FieldText field_text(std::string_view record, std::string_view path);

/// The fields of an object whose values are strings, those of objects in it included, for messages:
/// "title, content.text"; "none". The object may be cut anywhere.
[[nodiscard]] std::string text_fields(std::string_view record);

/// Whether a text begins as JSON does: with an object that has a member or is empty, or with an
/// array of objects, arrays or strings, before which null may stand. A byte order mark may stand
/// before it.
///
/// start: as much of the text as there is, some KiB at most are needed. A string of an array may be
///        longer, if it has no newline as far as it is there.
[[nodiscard]] bool begins_as_json(std::string_view start);

/// UTF-8's byte order mark, which editors write and which is no part of a text.
inline constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

/// start: of a file.
[[nodiscard]] inline std::string_view without_byte_order_mark(std::string_view start) {
  if (start.starts_with(kByteOrderMark)) start.remove_prefix(kByteOrderMark.size());
  return start;
}

/// Between JSON's values.
inline constexpr std::string_view kJsonSpace = " \t\r\n";

}  // namespace dtrain::data
