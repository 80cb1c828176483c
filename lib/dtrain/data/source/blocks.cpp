#include "dtrain/data/source/blocks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/data/text.h"
#include "dtrain/data/tokenizer/utf8.h"

namespace dtrain::data {
namespace {

using base::ErrorKind;
using base::fail;
using Json = nlohmann::json;

struct Place {
  const Block& block;
  std::int64_t line;
};

template <typename... Args>
[[noreturn]] void refuse(const Place& place, fmt::format_string<Args...> format, Args&&... args) {
  base::fail(ErrorKind::data, "data file '{}', line {}: {}", place.block.file, place.line,
             fmt::format(format, std::forward<Args>(args)...));
}

// The parser's own words begin with "[json.exception.parse_error.101] parse error at line 1, ".
std::string reason_of(const Json::exception& error) {
  const std::string message = error.what();
  const auto place = message.find("column");
  return base::printable(place == message.npos ? message : message.substr(place));
}

// JSON lines are often taken for a JSON array.
std::string_view advice_for(std::string_view line) {
  const std::size_t first = line.find_first_not_of(" \t\r");
  return first != line.npos && line[first] == '['
             ? "; it seems to be a JSON array: jq -c '.[]' FILE writes its objects as lines"
             : "";
}

Json parse(const Place& place, std::string_view line) {
  try {
    return Json::parse(line);
  } catch (const Json::exception& error) {
    refuse(place, "it is not JSON ({}); every line must be one object{}", reason_of(error),
           advice_for(line));
  }
}

// The first ones: a stranger's object may have any number of them, of any length.
std::string fields_with_texts(const Json& object) {
  constexpr std::size_t kMostNames = 10;
  constexpr std::size_t kLongestName = 40;
  std::vector<std::string> names;
  for (const auto& [name, value] : object.items()) {
    if (!value.is_string()) continue;
    if (names.size() == kMostNames) {
      names.emplace_back("...");
      break;
    }
    names.push_back(name.size() > kLongestName ? name.substr(0, kLongestName) + "..." : name);
  }
  return names.empty() ? "none" : base::printable(fmt::format("{}", fmt::join(names, ", ")));
}

std::string text_in(const Place& place, std::string_view line, const std::string& field) {
  Json object = parse(place, line);
  if (!object.is_object()) {
    refuse(place, "found {} where an object is needed{}", object.type_name(), advice_for(line));
  }
  const auto found = object.find(field);
  if (found == object.end()) {
    refuse(place, "it has no field \"{}\"; its texts are in: {}; name one with --field", field,
           fields_with_texts(object));
  }
  if (!found->is_string()) {
    refuse(place, "its field \"{}\" is {}, not a string; name another with --field", field,
           found->type_name());
  }
  return std::move(found->get_ref<std::string&>());
}

// As parts_of. Blank lines are passed over.
std::vector<Part> documents_of_lines(const Block& block, const LineRule& rule,
                                     std::string& storage) {
  std::vector<std::size_t> ends;
  std::int64_t number = block.first_line;
  for (std::string_view rest = block.bytes; !rest.empty(); ++number) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == rest.npos ? rest.size() : end + 1);
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const std::string text = text_in({block, number}, line, rule.field);
    if (text.empty()) continue;
    storage += text;
    if (rule.adds_newline && text.back() != '\n') storage += '\n';
    ends.push_back(storage.size());
  }
  std::vector<Part> parts;
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    parts.push_back({.text = std::string_view(storage).substr(begin, end - begin)});
    begin = end;
  }
  return parts;
}

// The raw files of WikiText: articles whose first line is " = Title = ".
constexpr std::string_view kBeginsTitle = "\n = ";
constexpr std::string_view kBeginsSection = "\n = =";
constexpr std::string_view kEndsTitle = " = \n";

std::string_view line_at(std::string_view text, std::size_t at) {
  const std::size_t end = text.find('\n', at);
  return text.substr(at, end == text.npos ? text.npos : end + 1 - at);
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \r\n") == line.npos; }

// The line that ends before `at`.
std::string_view line_before(std::string_view text, std::size_t at) {
  const std::size_t end = at - 1;
  const std::size_t newline = end == 0 ? text.npos : text.rfind('\n', end - 1);
  const std::size_t begin = newline == text.npos ? 0 : newline + 1;
  return text.substr(begin, end - begin);
}

// line_begin: of " = Title = \n".
bool is_title(std::string_view text, std::size_t line_begin) {
  const std::string_view line = line_at(text, line_begin);
  if (!line.starts_with(kBeginsTitle.substr(1)) || line.starts_with(kBeginsSection.substr(1)) ||
      !line.ends_with(kEndsTitle)) {
    return false;
  }
  const std::size_t after = line_begin + line.size();
  return after < text.size() && is_blank(line_at(text, after)) &&
         (line_begin == 0 || is_blank(line_before(text, line_begin)));
}

// Whether an article's title stands at `at`: a line " = Title = " that is neither a section's
// (" = = Section = = ") nor follows text, between lines that are empty or the file's ends.
bool begins_article(std::string_view text, std::size_t at) {
  return at < text.size() && (at == 0 || text[at - 1] == '\n') && is_title(text, at);
}

// Where the next article after text's first byte begins; text.size(): nowhere. Blank lines at
// text's beginning belong to the article after them.
std::size_t next_article(std::string_view text) {
  for (auto at = text.find(kBeginsTitle); at != text.npos; at = text.find(kBeginsTitle, at + 1)) {
    if (is_title(text, at + 1) && !is_blank(text.substr(0, at))) return at + 1;
  }
  return text.size();
}

// Where the last article of `text` begins, all of whose title's surroundings are there; 0: only at
// the beginning, behind blank lines, or nowhere.
std::size_t last_article(std::string_view text) {
  for (auto at = text.rfind(kBeginsTitle); at != text.npos; at = text.rfind(kBeginsTitle, at - 1)) {
    if (is_title(text, at + 1)) return is_blank(text.substr(0, at)) ? 0 : at + 1;
    if (at == 0) break;
  }
  return 0;
}

}  // namespace

bool BlockReader::next(Block& block) {
  std::size_t taken = 0;
  while (taken == 0) {
    if (stream_ == nullptr || (is_at_end_ && buffer_.empty())) {
      if (stream_ != nullptr) consumed_before_ += stream_->consumed();
      stream_ = nullptr;
      if (next_file_ == options_.files.size()) return false;
      open_next_file();
    }
    taken = bytes_to_take();
  }
  block = {.bytes = buffer_.substr(0, taken),
           .file = options_.files[next_file_ - 1],
           .offset = offset_,
           .first_line = line_,
           .format = options_.format,
           .begins_document = is_first_,
           .ends_document = is_at_end_ && taken == buffer_.size()};
  if (options_.format == Format::json_lines) {
    line_ += std::count(block.bytes.begin(), block.bytes.end(), '\n');
  }
  // What follows an article's head begins a document too.
  is_first_ = options_.format == Format::wikitext && begins_article(buffer_, taken);
  if (is_first_) block.ends_document = true;
  buffer_.erase(0, taken);
  offset_ += static_cast<std::int64_t>(taken);
  return true;
}

std::int64_t BlockReader::consumed() const noexcept {
  return consumed_before_ + (stream_ == nullptr ? 0 : stream_->consumed());
}

void BlockReader::open_next_file() {
  const std::string& path = options_.files[next_file_++];
  stream_ = open_bytes(path);
  is_at_end_ = false;
  is_first_ = true;
  offset_ = 0;
  line_ = 1;
  read_more();
  check_is_text(buffer_, path);
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";  // editors' mark, no part of a text
  if (buffer_.starts_with(kByteOrderMark)) offset_ = std::ssize(kByteOrderMark);
  buffer_.erase(0, static_cast<std::size_t>(offset_));
}

void BlockReader::read_more() {
  const std::size_t before = buffer_.size();
  buffer_.resize(before + options_.block_bytes);
  const std::size_t count = stream_->read(std::span(buffer_).subspan(before));
  buffer_.resize(before + count);
  is_at_end_ = count < options_.block_bytes;
}

std::size_t BlockReader::bytes_to_take() {
  while (!is_at_end_ && buffer_.size() < options_.block_bytes) read_more();
  for (;;) {
    if (is_at_end_ && buffer_.size() <= 2 * options_.block_bytes) return buffer_.size();
    std::size_t cut = 0;
    switch (options_.format) {
      case Format::text:
        cut = options_.cut(buffer_);
        break;
      case Format::json_lines:
        cut = buffer_.rfind('\n') + 1;
        break;
      case Format::wikitext:
        cut = last_article(buffer_);
        break;
    }
    if (cut > 0) return cut;
    if (is_at_end_) return buffer_.size();
    if (buffer_.size() < options_.longest_part) {
      read_more();
      continue;
    }
    if (options_.format == Format::json_lines) {
      fail(ErrorKind::data, "data file '{}': line {} is longer than {} MiB; is it JSON lines?",
           options_.files[next_file_ - 1], line_, options_.longest_part >> 20);
    }
    if (options_.format == Format::wikitext) cut = options_.cut(buffer_);
    if (cut > 0) return cut;
    return whole_characters(std::string_view(buffer_).substr(0, buffer_.size() - 1));
  }
}

std::vector<Part> parts_of(const Block& block, const LineRule& rule, std::string& storage) {
  if (block.format == Format::json_lines) return documents_of_lines(block, rule, storage);
  std::vector<Part> parts;
  std::string_view rest = block.bytes;
  bool begins = block.begins_document;
  while (!rest.empty()) {
    const std::size_t next = block.format == Format::wikitext ? next_article(rest) : rest.size();
    parts.push_back({.text = rest.substr(0, next),
                     .begins_document = begins,
                     .ends_document = next < rest.size() || block.ends_document});
    rest.remove_prefix(next);
    begins = true;
  }
  return parts;
}

std::size_t count_words(std::string_view text) {
  std::size_t words = 0;
  bool is_within = false;
  for (const char c : text) {
    const bool is_space = c == ' ' || c == '\n' || c == '\t' || c == '\r';
    if (c == '\n' || (!is_space && !is_within)) ++words;
    is_within = !is_space;
  }
  return words;
}

void check_utf8(const Block& block) {
  if (block.format == Format::json_lines) return;  // the parser of JSON does
  const auto wrong = invalid_utf8_at(block.bytes);
  if (!wrong) return;
  base::fail(base::ErrorKind::data,
             "data file '{}' is not UTF-8, which its tokenizer needs: byte {:#04x} at offset {} of "
             "the text; convert it with iconv, or leave out --tokenizer to train on bytes",
             block.file, static_cast<unsigned char>(block.bytes[*wrong]),
             block.offset + static_cast<std::int64_t>(*wrong));
}

}  // namespace dtrain::data
