// Typed access to the keys of a Hugging Face config.json.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/config/input/assign.h"

namespace dtrain::config {

/// Reads the keys of one JSON object, and finally rejects those that were not read, because they
/// may change the arithmetic. Absent and null keys differ only where a member says so.
///
/// Throws: every member: Error{checkpoint} naming the file and the key.
class HuggingFaceKeys {
 public:
  /// object: must outlive this.
  /// origin: the file, for messages.
  /// parent: the key of `object` in the file; empty for the file's own object.
  HuggingFaceKeys(const Json& object, std::string origin, std::string parent = {})
      : object_(object), origin_(std::move(origin)), parent_(std::move(parent)) {}

  /// True if the key is there, also as null.
  [[nodiscard]] bool has(std::string_view key) const;

  /// A whole number above 0.
  [[nodiscard]] std::int64_t required_size(std::string_view key);
  /// Returns `absent` if the key is absent, nothing if it is null.
  [[nodiscard]] std::optional<std::int64_t> size(std::string_view key,
                                                 std::optional<std::int64_t> absent = {});
  /// As size(), or 0.
  [[nodiscard]] std::optional<std::int64_t> count(std::string_view key,
                                                  std::optional<std::int64_t> absent = {});
  /// A finite number; nothing if absent or null.
  [[nodiscard]] std::optional<double> number(std::string_view key);
  [[nodiscard]] double required_number(std::string_view key);
  [[nodiscard]] std::optional<bool> flag(std::string_view key);
  [[nodiscard]] std::optional<std::string> text(std::string_view key);
  /// A list of texts.
  [[nodiscard]] std::optional<std::vector<std::string>> texts(std::string_view key);
  /// The object at `key`; nothing if it is absent, null or empty.
  [[nodiscard]] std::optional<HuggingFaceKeys> object(std::string_view key);

  /// Rejects a value other than `only`; accepts an absent or null key.
  ///
  /// meaning: what another value would request, for the message.
  void require(std::string_view key, const Json& only, std::string_view meaning);

  /// Marks keys as read.
  void skip(std::initializer_list<std::string_view> keys) {
    read_.insert(keys.begin(), keys.end());
  }

  /// Rejects the first key that was not read and is not known to leave the arithmetic of inference
  /// and training unchanged.
  void reject_unread() const;

  /// Rejects the file because of the key's value.
  ///
  /// problem: completes "KEY is VALUE," or "KEY is missing,".
  [[noreturn]] void refuse(std::string_view key, std::string_view problem) const;

 private:
  // Null if absent or null. Marks the key as read.
  const Json* find(std::string_view key);
  [[nodiscard]] std::optional<std::int64_t> whole_number(std::string_view key, std::int64_t lowest,
                                                         std::optional<std::int64_t> absent);
  [[nodiscard]] std::string full_name(std::string_view key) const;

  const Json& object_;
  std::string origin_;
  std::string parent_;
  std::set<std::string, std::less<>> read_;
};

}  // namespace dtrain::config
