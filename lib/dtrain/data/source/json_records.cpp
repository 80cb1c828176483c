#include "dtrain/data/source/json_records.h"

#include <fmt/format.h>

#include <algorithm>

#include "dtrain/base/error.h"
#include "dtrain/data/source/blocks.h"
#include "dtrain/data/source/json_text.h"

namespace dtrain::data {
namespace {

using base::ErrorKind;
using base::fail;

bool holds_nothing(std::string_view text) {
  return text.find_first_not_of(kJsonSpace) == text.npos;
}

/// Builds documents from the records of one block.
class DocumentBuilder {
 public:
  DocumentBuilder(const Block& block, const DocumentOptions& rule, std::string& storage,
                  RecordReport& report)
      : block_(block),
        rule_(rule),
        storage_(storage),
        report_(report),
        begins_text_(block.begins_document && !begins_as_json(block.bytes)) {}

  void add(std::string_view record, std::int64_t line) {
    if (holds_nothing(record)) return;
    try {
      add_text(field_text(record, rule_.field), record, line);
    } catch (const RecordFault& fault) {
      const std::string message = fmt::format(
          "{}{}", place_of(line, fault.what()),
          begins_text_ ? "; the file does not begin as JSON: omit --field if it is a text" : "");
      if (!rule_.skips_bad_records) {
        fail(ErrorKind::data, "{}; --skip-bad-lines skips bad records", message);
      }
      note(report_.bad, line, message);
    }
  }

  [[nodiscard]] std::vector<TextSpan> parts() const {
    std::vector<TextSpan> parts;
    std::size_t begin = 0;
    for (const std::size_t end : ends_) {
      parts.push_back({.text = std::string_view(storage_).substr(begin, end - begin)});
      begin = end;
    }
    return parts;
  }

 private:
  void add_text(const FieldText& found, std::string_view record, std::int64_t line) {
    if (found.text || found.is_null) ++report_.num_with_field;
    if (!found.text) {
      const std::string fault =
          found.is_null ? fmt::format("its field \"{}\" is null", rule_.field)
                        : fmt::format(
                              "it has no field \"{}\"; its text fields: {}; name one with "
                              "--field",
                              rule_.field, text_fields(record));
      return note(report_.without_text, line, place_of(line, fault));
    }
    if (found.text->empty()) return;
    storage_ += *found.text;
    if (rule_.adds_newline && found.text->back() != '\n') storage_ += '\n';
    ends_.push_back(storage_.size());
  }

  [[nodiscard]] std::string place_of(std::int64_t line, std::string_view fault) const {
    return fmt::format("data file '{}', line {}: {}", block_.file, line, fault);
  }

  void note(RecordLocations& places, std::int64_t line, const std::string& fault) {
    if (report_.first_fault.empty()) report_.first_fault = fault;
    places.add({.count = 1, .first = {fmt::format("'{}' line {}", block_.file, line)}});
  }

  const Block& block_;
  const DocumentOptions& rule_;
  std::string& storage_;
  RecordReport& report_;
  bool begins_text_;                 // the block begins a file that is accepted without --field
  std::vector<std::size_t> ends_{};  // of documents in storage_
};

// With its newline.
std::string_view line_from(std::string_view text, std::size_t begin) {
  const std::size_t newline = text.find('\n', begin);
  return text.substr(begin, newline == text.npos ? text.npos : newline + 1 - begin);
}

bool is_object(std::string_view line) {
  const std::size_t first = line.find_first_not_of(kJsonSpace);
  if (first == line.npos || line[first] != '{') return false;
  RecordSplitter splitter(JsonShape::values);
  const auto object = splitter.next(line);
  return object && holds_nothing(line.substr(first + object->size()));
}

// Detects the shape of a text whose first line ends within an object. In JSON a nested object
// follows ':', ',' or '['. A line that is an object elsewhere is a record, and the first line is a
// bad one.
std::optional<JsonShape> shape_of_open(std::string_view text, std::size_t next_line, bool is_all) {
  constexpr std::string_view kBeforeValue = ":,[";
  RecordSplitter splitter(JsonShape::values);
  for (std::size_t begin = next_line; begin < text.size();) {
    const std::string_view before = text.substr(0, begin);
    if (splitter.next(before)) return JsonShape::values;
    const std::string_view line = line_from(text, begin);
    const bool is_whole = is_all || line.ends_with('\n');
    if (is_whole && is_object(line) &&
        kBeforeValue.find(before[before.find_last_not_of(kJsonSpace)]) == kBeforeValue.npos) {
      return JsonShape::lines;
    }
    begin += line.size();
  }
  const bool is_decided = is_all || splitter.next(text);
  return is_decided ? std::optional(JsonShape::values) : std::nullopt;
}

}  // namespace

std::optional<JsonShape> shape_of(std::string_view start, bool is_all) {
  const std::size_t first = start.find_first_not_of(kJsonSpace);
  if (first == start.npos) return is_all ? std::optional(JsonShape::lines) : std::nullopt;
  if (start[first] == '[') return JsonShape::values;
  if (start[first] != '{') return JsonShape::lines;
  const std::string_view text = start.substr(first);
  const std::string_view line = line_from(text, 0);
  if (!line.ends_with('\n') && !is_all) return std::nullopt;
  RecordSplitter splitter(JsonShape::values);
  const auto object = splitter.next(line);
  if (!object && splitter.is_within_string()) return JsonShape::lines;
  if (!object) return shape_of_open(text, line.size(), is_all);
  const std::string_view rest = line.substr(object->size());
  const std::size_t next = rest.find_first_not_of(kJsonSpace);
  const bool has_more = next != rest.npos && (rest[next] == '{' || rest[next] == ',');
  return has_more ? JsonShape::values : JsonShape::lines;
}

std::optional<std::string_view> RecordSplitter::next(std::string_view text) {
  const auto record = shape_ == JsonShape::lines ? next_line(text) : next_value(text);
  if (record) after_ = at_;
  return record;
}

std::optional<std::string_view> RecordSplitter::next_line(std::string_view text) {
  const std::size_t newline = text.find('\n', at_);
  at_ = newline == text.npos ? text.size() : newline + 1;
  if (newline == text.npos) return std::nullopt;
  const std::size_t begin = begin_;
  begin_ = at_;
  return text.substr(begin, at_ - begin);
}

std::optional<std::string_view> RecordSplitter::next_value(std::string_view text) {
  for (; at_ < text.size(); ++at_) {
    const char c = text[at_];
    // A number or literal ends before the delimiter that follows it.
    if (state_ == State::bare && (kJsonSpace.find(c) != kJsonSpace.npos || c == ',' || c == ']')) {
      state_ = State::between;
      return text.substr(begin_, at_ - begin_);
    }
    if (step(c)) return text.substr(begin_, ++at_ - begin_);
  }
  return std::nullopt;
}

// Returns whether c, at at_, ends a record.
bool RecordSplitter::step(char c) {
  switch (state_) {
    case State::between:
      if (c == '[') ++arrays_;
      if (c == ']' && arrays_ > 0) --arrays_;
      if (c == '[' || c == ']' || c == ',' || kJsonSpace.find(c) != kJsonSpace.npos) return false;
      begin_ = at_;
      depth_ = c == '{' ? 1 : 0;
      state_ = c == '{' ? State::object : c == '"' ? State::string : State::bare;
      return false;
    case State::bare:
      return false;
    case State::escaped:
      state_ = State::string;
      return false;
    case State::string:
      if (c == '\\') state_ = State::escaped;
      if (c != '"') return false;
      state_ = depth_ > 0 ? State::object : State::between;
      return depth_ == 0;
    case State::object:
      if (c == '"') state_ = State::string;
      if (c == '{' || c == '[') ++depth_;
      if ((c != '}' && c != ']') || --depth_ > 0) return false;
      state_ = State::between;
      return true;
  }
  return false;
}

std::string_view RecordSplitter::unfinished(std::string_view text) const {
  const bool is_within = shape_ == JsonShape::lines || state_ != State::between;
  return is_within ? text.substr(begin_) : std::string_view();
}

std::size_t RecordSplitter::last_end(std::string_view text) {
  while (next(text)) continue;
  return after_;
}

void RecordSplitter::drop(std::size_t count) {
  const auto move = [count](std::size_t& place) { place -= std::min(place, count); };
  move(at_);
  move(begin_);
  move(after_);
}

bool RecordSplitter::is_within_string() const {
  return state_ == State::string || state_ == State::escaped;
}

bool RecordSplitter::is_closed() const {
  if (shape_ == JsonShape::lines) return true;
  return !is_within_string() && state_ != State::object && arrays_ == 0;
}

std::string_view first_record(std::string_view start) {
  start = without_byte_order_mark(start);
  RecordSplitter splitter(JsonShape::values);
  auto record = splitter.next(start);
  while (record && *record == "null") record = splitter.next(start);
  return record ? *record : splitter.unfinished(start);
}

void RecordLocations::add(const RecordLocations& later) {
  constexpr std::size_t kMostShown = 3;
  count += later.count;
  for (const std::string& place : later.first) {
    if (first.size() < kMostShown) first.push_back(place);
  }
}

void RecordReport::add(const RecordReport& later) {
  num_with_field += later.num_with_field;
  bad.add(later.bad);
  without_text.add(later.without_text);
  if (first_fault.empty()) first_fault = later.first_fault;
}

void RecordReport::check_field_exists(bool is_all_read) const {
  constexpr std::int64_t kEnough = 1000;
  const std::int64_t num_faults = bad.count + without_text.count;
  if (num_with_field > 0 || num_faults == 0 || (num_faults < kEnough && !is_all_read)) return;
  fail(ErrorKind::data, "{} (none of the first {} records has text in it)", first_fault,
       num_faults);
}

std::vector<TextSpan> documents_of_records(const Block& block, const DocumentOptions& rule,
                                           std::string& storage, RecordReport& report) {
  DocumentBuilder builder(block, rule, storage, report);
  RecordSplitter splitter(block.shape);
  std::int64_t line = block.first_line;
  std::size_t counted = 0;  // bytes whose newlines are in `line`
  const std::string_view bytes = block.bytes;
  const auto add = [&](std::string_view record) {
    const auto begin = static_cast<std::size_t>(record.data() - bytes.data());
    line += std::ranges::count(bytes.substr(counted, begin - counted), '\n');
    counted = begin;
    builder.add(record, line);
  };
  while (const auto record = splitter.next(bytes)) add(*record);
  if (const auto rest = splitter.unfinished(bytes); !rest.empty()) add(rest);
  return builder.parts();
}

}  // namespace dtrain::data
