// Finds the records of a JSON file (lines or array elements) and extracts documents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::data {

/// How records are delimited.
enum class JsonShape {
  lines,   ///< one record per line
  values,  ///< consecutive objects or array elements, each over any number of lines
};

/// Detects the shape from the first non-blank line. Returns `values` if the line begins an array,
/// holds several objects, or ends within an object but not within a string. Exception: if the line
/// ends within an object, and a later line is a complete object at a position where JSON allows
/// none, returns `lines`; the first record is then bad.
///
/// start:  the beginning of a file, without byte order mark.
/// is_all: `start` is the whole file. If false, the result is empty when more bytes are needed.
[[nodiscard]] std::optional<JsonShape> shape_of(std::string_view start, bool is_all);

/// Splits a growing text into records; examines each byte once.
class RecordSplitter {
 public:
  explicit RecordSplitter(JsonShape shape) : shape_(shape) {}

  /// Returns the next complete record; a line includes its newline. text: the text of the previous
  /// call, without the bytes dropped since, and possibly with more bytes at its end.
  [[nodiscard]] std::optional<std::string_view> next(std::string_view text);
  /// Returns the incomplete record at the end of `text`; empty if there is none.
  [[nodiscard]] std::string_view unfinished(std::string_view text) const;
  /// Advances to the end of `text`. Returns where its last complete record ends, or 0.
  [[nodiscard]] std::size_t last_end(std::string_view text);
  /// Must be called after `count` bytes were removed from the beginning of the text.
  void drop(std::size_t count);
  [[nodiscard]] bool is_within_string() const;
  /// Returns false if the text so far ends within an object, or within an array of records.
  [[nodiscard]] bool is_closed() const;

 private:
  enum class State { between, bare, string, escaped, object };

  [[nodiscard]] std::optional<std::string_view> next_line(std::string_view text);
  [[nodiscard]] std::optional<std::string_view> next_value(std::string_view text);
  [[nodiscard]] bool step(char c);

  JsonShape shape_;
  State state_ = State::between;
  std::size_t at_ = 0;       // number of bytes examined
  std::size_t begin_ = 0;    // first byte of the record at at_
  std::size_t after_ = 0;    // end of the last complete record
  std::int64_t depth_ = 0;   // open brackets within the record
  std::int64_t arrays_ = 0;  // open arrays around the record
};

/// Returns the first record that is not null, or its available part. start: the beginning of a file
/// of shape `values`.
[[nodiscard]] std::string_view first_record(std::string_view start);

/// Counts records and keeps the locations of the first ones.
struct RecordLocations {
  std::int64_t count = 0;
  std::vector<std::string> first{};  ///< "'FILE' line N", at most three

  void add(const RecordLocations& later);
};

/// Statistics on JSON records.
struct RecordReport {
  std::int64_t num_with_field = 0;
  RecordLocations bad{};           ///< not JSON, or the field is not text; skipped
  RecordLocations without_text{};  ///< the field is missing or null; skipped
  RecordLocations not_utf8{};      ///< texts that do not begin with valid UTF-8; read as bytes
  std::string first_fault{};  ///< error message for the first skipped record, with its location

  /// later: the report on the records that come next.
  void add(const RecordReport& later);
  /// Fails if the field's name is probably wrong.
  ///
  /// Throws: Error{data} if none of the first 1,000 records has the field, or none at all.
  void check_field_exists(bool is_all_read) const;
};

struct Block;
struct TextSpan;

/// How to extract documents from texts and records.
struct DocumentOptions {
  std::string field{};        ///< JSON field with the text, as in field_text
  bool adds_newline = false;  ///< append a newline to documents that lack one
  bool skips_bad_records = false;
};

/// Extracts the documents of a JSON block into `storage`; blank lines and empty texts yield none.
///
/// Throws: Error{data} naming file and line of a bad record, unless bad records are skipped.
[[nodiscard]] std::vector<TextSpan> documents_of_records(const Block& block,
                                                         const DocumentOptions& rule,
                                                         std::string& storage,
                                                         RecordReport& report);

}  // namespace dtrain::data
