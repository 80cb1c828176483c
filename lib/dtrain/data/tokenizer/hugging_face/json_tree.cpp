#include "dtrain/data/tokenizer/hugging_face/json_tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/text/text.h"

namespace dtrain::data {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kLongestName = 80;  // bytes of a name in a message

[[noreturn]] void refuse_tokenizer(const std::string& file, std::string_view problem) {
  base::fail(base::ErrorKind::data, "tokenizer '{}': {}", file, problem);
}

/// Builds the tree. Unlike nlohmann's own parser, it rejects what later readers would not see.
class TreeBuilder final : public nlohmann::json_sax<Json> {
 public:
  explicit TreeBuilder(const std::string& file) : file_(file) {}

  Json take_root() { return std::move(root_); }

  bool null() override { return add(Json()); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool key(string_t& name) override {
    key_ = std::move(name);
    return true;
  }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    constexpr int kNumberOutOfRange = 406;
    refuse_tokenizer(file_, error.id == kNumberOutOfRange
                                ? fmt::format("a number is out of range at byte {}", position)
                                : fmt::format("not JSON at byte {}", position));
  }

 private:
  static constexpr std::size_t kMostLevels = 32;

  bool add(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (open_.size() == kMostLevels) {
      refuse_tokenizer(file_, fmt::format("it is nested in more than {} levels", kMostLevels));
    }
    open_.push_back(place(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }
  Json* place(Json value) {
    if (open_.empty()) return &(root_ = std::move(value));
    if (open_.back()->is_array()) return &open_.back()->emplace_back(std::move(value));
    const auto [at, is_new] = open_.back()->emplace(key_, std::move(value));
    if (!is_new) {
      refuse_tokenizer(file_, fmt::format("it names \"{}\" twice in one object",
                                          base::printable(key_, kLongestName)));
    }
    return &at.value();
  }

  const std::string& file_;
  Json root_;
  std::vector<Json*> open_;  // an open container stays where it is while others are added to it
  std::string key_;
};

}  // namespace

bool JsonField::has(std::string_view name) const {
  require_object();
  const auto found = value_.find(name);
  return found != value_.end() && !found->is_null();
}

JsonField JsonField::operator[](std::string_view name) const {
  require_object();
  const auto found = value_.find(name);
  const std::string place = place_.empty() ? std::string(name) : fmt::format("{}.{}", place_, name);
  if (found == value_.end()) refuse_tokenizer(file_, place + " is missing");
  return {*found, place, file_};
}

std::vector<JsonField> JsonField::elements() const {
  if (!value_.is_array())
    refuse(fmt::format("is not an array, but of type {}", value_.type_name()));
  std::vector<JsonField> fields;
  fields.reserve(value_.size());
  for (std::size_t i = 0; i < value_.size(); ++i) {
    fields.emplace_back(value_[i], fmt::format("{}[{}]", place_, i), file_);
  }
  return fields;
}

const std::string& JsonField::text() const {
  if (!value_.is_string())
    refuse(fmt::format("is not a string, but of type {}", value_.type_name()));
  return value_.get_ref<const std::string&>();
}

bool JsonField::boolean() const {
  if (!value_.is_boolean()) {
    refuse(fmt::format("is neither true nor false, but of type {}", value_.type_name()));
  }
  return value_.get<bool>();
}

bool JsonField::boolean_or(std::string_view name, bool otherwise) const {
  return has(name) ? (*this)[name].boolean() : otherwise;
}

std::uint32_t JsonField::token_number() const {
  constexpr std::uint64_t kMost = (std::uint64_t{1} << 31) - 2;
  if (!value_.is_number_unsigned() || value_.get<std::uint64_t>() > kMost) {
    refuse(fmt::format("is not a whole number from 0 to {}", kMost));
  }
  return value_.get<std::uint32_t>();
}

void JsonField::require_object() const {
  if (!value_.is_object())
    refuse(fmt::format("is not an object, but of type {}", value_.type_name()));
}

void JsonField::allow_only(std::initializer_list<std::string_view> names) const {
  require_object();
  for (const auto& [name, value] : value_.items()) {
    if (std::ranges::count(names, name) > 0) continue;
    refuse(fmt::format("has the field \"{}\", which is not supported",
                       base::printable(name, kLongestName)));
  }
}

void JsonField::refuse(std::string_view problem) const {
  refuse_tokenizer(file_, fmt::format("{} {}", place_.empty() ? "its content" : place_, problem));
}

nlohmann::json parse_tree(std::string_view content, const std::string& file) {
  if (content.find('\0') != content.npos) refuse_tokenizer(file, "it has a NUL byte");
  TreeBuilder builder(file);
  Json::sax_parse(content, &builder);
  return builder.take_root();
}

}  // namespace dtrain::data
