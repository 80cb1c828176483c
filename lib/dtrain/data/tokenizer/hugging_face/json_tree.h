// Parses untrusted JSON and reads its fields strictly.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dtrain::data {

/// A field of a JSON file, with its place for messages ("model.vocab").
///
/// Throws: Error{data} "tokenizer 'NAME': PLACE ...", for a field that is missing or of another
///         type, or a field that is not expected.
class JsonField {
 public:
  JsonField(const nlohmann::json& value, std::string place, const std::string& file)
      : value_(value), place_(std::move(place)), file_(file) {}

  [[nodiscard]] const nlohmann::json& value() const { return value_; }
  [[nodiscard]] bool is_null() const { return value_.is_null(); }
  /// True if the object has this field and it is not null.
  [[nodiscard]] bool has(std::string_view name) const;
  /// A field that must exist.
  [[nodiscard]] JsonField operator[](std::string_view name) const;
  /// The elements of an array.
  [[nodiscard]] std::vector<JsonField> elements() const;
  [[nodiscard]] const std::string& text() const;
  [[nodiscard]] bool boolean() const;
  /// The field if it exists, otherwise `otherwise`.
  [[nodiscard]] bool boolean_or(std::string_view name, bool otherwise) const;
  [[nodiscard]] std::uint32_t token_number() const;
  /// The object's "type".
  [[nodiscard]] const std::string& type() const { return (*this)["type"].text(); }
  void require_object() const;
  /// Rejects an object with other fields.
  void allow_only(std::initializer_list<std::string_view> names) const;
  /// problem: completes "tokenizer 'NAME': PLACE PROBLEM".
  [[noreturn]] void refuse(std::string_view problem) const;

 private:
  const nlohmann::json& value_;
  std::string place_;
  const std::string& file_;
};

/// Parses JSON without duplicate names in an object and without deep nesting.
///
/// Throws: Error{data} naming the file.
[[nodiscard]] nlohmann::json parse_tree(std::string_view content, const std::string& file);

}  // namespace dtrain::data
