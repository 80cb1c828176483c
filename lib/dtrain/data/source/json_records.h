// Finds the records of a JSON file, whether they are lines or the objects of an array, and makes
// documents of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::data {

/// Where records begin and end.
enum class JsonShape {
  lines,   ///< each line is one
  values,  ///< objects one after another, each over any lines, or in arrays
};

/// By the first line that is not blank. It begins an array, holds several objects, or ends within
/// an object but not within a string: then the records are values. But if it ends within an object,
/// and a later line is a whole object where JSON can have none, it is a bad one of lines.
///
/// start:  of a file, without byte order mark.
/// is_all: nothing follows, or no more will be read. Else the shape may need more: nothing then.
[[nodiscard]] std::optional<JsonShape> shape_of(std::string_view start, bool is_all);

/// Finds records in a text that comes piece by piece, and looks at each byte once.
class RecordSplitter {
 public:
  explicit RecordSplitter(JsonShape shape) : shape_(shape) {}

  /// The next record all of which is in `text`, which begins as at the last call, drop() apart, and
  /// may have grown. A line has its newline.
  [[nodiscard]] std::optional<std::string_view> next(std::string_view text);
  /// The record that `text` ends within; empty if there is none.
  [[nodiscard]] std::string_view unfinished(std::string_view text) const;
  /// Where the last whole record in `text` ends, after calls of next; 0: it holds none.
  [[nodiscard]] std::size_t last_end(std::string_view text);
  /// Tells that `count` bytes were removed from the beginning of the text.
  void drop(std::size_t count);
  [[nodiscard]] bool is_within_string() const;
  /// False if the text so far ends within an object, or within an array around objects.
  [[nodiscard]] bool is_closed() const;

 private:
  enum class State { between, bare, string, escaped, object };

  [[nodiscard]] std::optional<std::string_view> next_line(std::string_view text);
  [[nodiscard]] std::optional<std::string_view> next_value(std::string_view text);
  [[nodiscard]] bool step(char c);

  JsonShape shape_;
  State state_ = State::between;
  std::size_t at_ = 0;       // bytes that were looked at
  std::size_t begin_ = 0;    // of the record at at_
  std::size_t after_ = 0;    // the last whole record
  std::int64_t depth_ = 0;   // brackets that are open in the record
  std::int64_t arrays_ = 0;  // that are open around records
};

/// The first record of values that is not null, or as much of it as is there.
[[nodiscard]] std::string_view first_record(std::string_view start);

/// Where some records are.
struct RecordPlaces {
  std::int64_t count = 0;
  std::vector<std::string> first{};  ///< "'FILE' line N" of the first three

  void add(const RecordPlaces& later);
};

/// What the records held.
struct RecordReport {
  std::int64_t num_with_field = 0;
  RecordPlaces bad{};           ///< not JSON, or with a field that is no text: passed over
  RecordPlaces without_text{};  ///< whose field is missing or null: passed over
  RecordPlaces not_utf8{};      ///< texts taken byte by byte that do not begin as UTF-8
  std::string first_fault{};    ///< what is wrong with the first of them, with its place

  /// later: of what follows.
  void add(const RecordReport& later);
  /// Throws: Error{data} if no record has the field, once that is certain or enough were read to
  ///         see that its name is wrong.
  void check_field_exists(bool is_all_read) const;
};

struct Block;
struct Part;

/// How texts and records become documents.
struct DocumentRule {
  std::string field{};        ///< of JSON, which holds the text: a path as field_text takes it
  bool adds_newline = false;  ///< to a document that does not end with one
  bool skips_bad_records = false;
};

/// The documents of a block of JSON, written to `storage`; blank lines and empty texts give none.
///
/// Throws: Error{data} naming file and line of a bad record, unless the rule skips them.
[[nodiscard]] std::vector<Part> documents_of_records(const Block& block, const DocumentRule& rule,
                                                     std::string& storage, RecordReport& report);

}  // namespace dtrain::data
