#include "dtrain/data/source/blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/data/source/json_text.h"
#include "dtrain/data/text.h"
#include "dtrain/data/tokenizer/utf8.h"

namespace dtrain::data {
namespace {

using base::ErrorKind;
using base::fail;
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

// line_begin: where the candidate line " = Title = \n" begins.
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

// Returns whether an article's title begins at `at`: a line " = Title = ", not a section heading
// (" = = Section = = "), preceded and followed by a blank line or an end of the file.
bool begins_article(std::string_view text, std::size_t at) {
  return at < text.size() && (at == 0 || text[at - 1] == '\n') && is_title(text, at);
}

// Returns where the next article after the first byte begins, or text.size() if there is none.
// Leading blank lines belong to the article that follows them.
std::size_t next_article(std::string_view text) {
  for (auto at = text.find(kBeginsTitle); at != text.npos; at = text.find(kBeginsTitle, at + 1)) {
    if (is_title(text, at + 1) && !is_blank(text.substr(0, at))) return at + 1;
  }
  return text.size();
}

// Returns where the last article begins whose title line and neighbouring lines are complete; 0 if
// there is none after the text's leading blank lines.
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
    taken = options_.format == Format::json ? record_bytes_to_take() : bytes_to_take();
  }
  block = {.bytes = buffer_.substr(0, taken),
           .file = options_.files[next_file_ - 1],
           .offset = offset_,
           .first_line = line_,
           .format = options_.format,
           .shape = shape_,
           .begins_document = is_first_,
           .ends_document = is_at_end_ && taken == buffer_.size()};
  if (options_.format == Format::json) {
    line_ += std::count(block.bytes.begin(), block.bytes.end(), '\n');
    splitter_.drop(taken);
  }
  // A block that begins with an article's title begins a document.
  is_first_ = options_.format == Format::wikitext && begins_article(buffer_, taken);
  if (is_first_) block.ends_document = true;
  buffer_.erase(0, taken);
  offset_ += static_cast<std::int64_t>(taken);
  return true;
}

std::int64_t BlockReader::consumed() const noexcept {
  return consumed_before_ + (stream_ == nullptr ? 0 : stream_->consumed());
}

std::int64_t BlockReader::line_of_unfinished() const {
  const std::size_t before = buffer_.size() - splitter_.unfinished(buffer_).size();
  return line_ + std::ranges::count(buffer_.substr(0, before), '\n');
}

void BlockReader::check_closed() const {
  if (splitter_.is_closed()) return;
  fail(ErrorKind::data,
       "data file '{}' is truncated: the JSON array or object in line {} is not closed; fetch or "
       "write it again",
       options_.files[next_file_ - 1], line_of_unfinished());
}

void BlockReader::open_next_file() {
  const std::string& path = options_.files[next_file_++];
  stream_ = open_bytes(path, options_.on_wait);
  is_at_end_ = false;
  is_first_ = true;
  offset_ = 0;
  line_ = 1;
  read_more();
  check_is_text(buffer_, path);
  if (options_.format == Format::text && options_.refuses_json) check_is_no_json(buffer_, path);
  if (options_.format != Format::json && !is_utf8(buffer_)) {
    not_utf8_.add({.count = 1, .first = {fmt::format("'{}'", path)}});
  }
  offset_ = std::ssize(buffer_) - std::ssize(without_byte_order_mark(buffer_));
  buffer_.erase(0, static_cast<std::size_t>(offset_));
  if (options_.format == Format::json) find_shape();
}

void BlockReader::find_shape() {
  std::optional<JsonShape> shape;
  for (;;) {
    shape = shape_of(buffer_, is_at_end_ || buffer_.size() >= options_.longest_part);
    if (shape) break;
    read_more();
  }
  shape_ = *shape;
  splitter_ = RecordSplitter(shape_);
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
    const bool has_articles = options_.format == Format::wikitext;
    std::size_t cut = has_articles ? last_article(buffer_) : options_.cut(buffer_);
    if (cut > 0) return cut;
    if (is_at_end_) return buffer_.size();
    if (buffer_.size() < options_.longest_part) {
      read_more();
      continue;
    }
    if (has_articles) cut = options_.cut(buffer_);
    if (cut > 0) return cut;
    return whole_characters(std::string_view(buffer_).substr(0, buffer_.size() - 1));
  }
}

std::size_t BlockReader::record_bytes_to_take() {
  while (!is_at_end_ && buffer_.size() < options_.block_bytes) read_more();
  for (;;) {
    const std::size_t cut = splitter_.last_end(buffer_);
    if (is_at_end_) {
      check_closed();
      return buffer_.size();
    }
    if (cut > 0) return cut;
    if (buffer_.size() >= options_.longest_record) {
      fail(ErrorKind::data,
           "data file '{}': the record that begins in line {} is longer than {} MiB; check that "
           "the file is valid JSON",
           options_.files[next_file_ - 1], line_of_unfinished(), options_.longest_record >> 20);
    }
    read_more();
  }
}

std::vector<TextSpan> text_spans(const Block& block, const DocumentOptions& rule,
                                 std::string& storage, RecordReport& report) {
  if (block.format == Format::json) return documents_of_records(block, rule, storage, report);
  std::vector<TextSpan> parts;
  std::string_view rest = block.bytes;
  if (rule.adds_newline && block.ends_document && !rest.ends_with('\n')) {
    storage = block.bytes + '\n';
    rest = storage;
  }
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
  if (block.format == Format::json) return;  // field_text checks it
  const auto wrong = invalid_utf8_at(block.bytes);
  if (!wrong) return;
  base::fail(base::ErrorKind::data,
             "data file '{}' is not UTF-8, which the tokenizer requires: byte {:#04x} at offset {} "
             "of the text; convert it with iconv, or leave out --tokenizer to train on bytes",
             block.file, static_cast<unsigned char>(block.bytes[*wrong]),
             block.offset + static_cast<std::int64_t>(*wrong));
}

}  // namespace dtrain::data
