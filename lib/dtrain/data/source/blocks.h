// Cuts inputs into blocks that are tokenized independently, so that memory stays bounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/data/source/byte_stream.h"
#include "dtrain/data/source/json_records.h"

namespace dtrain::data {

/// The format of the input files.
enum class Format {
  text,      ///< each file is a document
  json,      ///< a sequence of objects; one field of each object is a document
  wikitext,  ///< each article is a document and begins with " = Title = "
};

/// A contiguous part of one document.
struct TextSpan {
  std::string_view text;
  bool begins_document = true;
  bool ends_document = true;
};

/// A part of a file that text_spans splits into documents.
struct Block {
  std::string bytes{};
  std::string file{};           ///< path, for messages
  std::int64_t offset = 0;      ///< offset of the block in the decompressed file
  std::int64_t first_line = 1;  ///< JSON only
  Format format = Format::text;
  JsonShape shape = JsonShape::lines;
  bool begins_document = true;
  bool ends_document = true;
};

struct BlockOptions {
  std::vector<std::string> files{};
  Format format = Format::text;
  /// Returns a position where a text may be cut, or 0 if there is none: Tokenizer::cut.
  std::function<std::size_t(std::string_view)> cut{};
  std::size_t block_bytes = std::size_t{1} << 20;
  /// Maximum length of text without a cut position; longer text is cut between two characters.
  std::size_t longest_part = std::size_t{16} << 20;
  /// Maximum bytes of a JSON record, which must fit in memory.
  std::size_t longest_record = std::size_t{64} << 20;
  /// Reject texts that look like JSON.
  bool refuses_json = true;
  /// Passed to open_bytes.
  std::function<void()> on_wait{};
};

/// Reads files in order. The blocks depend only on the files and the options.
///
/// Threads: one caller.
class BlockReader {
 public:
  explicit BlockReader(BlockOptions options) : options_(std::move(options)) {}

  /// Returns false at the end of the last file.
  ///
  /// Throws: Error{data} naming a file that cannot be read, is not text, has an overlong record, or
  ///         ends within its JSON; Error{usage} naming a JSON file where text is expected.
  [[nodiscard]] bool next(Block& block);
  /// Bytes read so far, as stored on disk.
  [[nodiscard]] std::int64_t consumed() const noexcept;
  /// Text files opened so far that do not begin with valid UTF-8.
  [[nodiscard]] const RecordLocations& not_utf8() const noexcept { return not_utf8_; }

 private:
  void open_next_file();
  void check_closed() const;
  [[nodiscard]] std::int64_t line_of_unfinished() const;
  void find_shape();
  void read_more();
  [[nodiscard]] std::size_t bytes_to_take();
  [[nodiscard]] std::size_t record_bytes_to_take();

  BlockOptions options_;
  std::size_t next_file_ = 0;
  std::unique_ptr<ByteStream> stream_;  // null if no file is open
  std::string buffer_;                  // read but not yet returned
  bool is_at_end_ = false;              // at the end of the open file
  bool is_first_ = true;                // the next block is the file's first
  std::int64_t offset_ = 0;             // file offset of buffer_
  std::int64_t line_ = 1;               // line number of buffer_
  std::int64_t consumed_before_ = 0;    // by finished files
  RecordLocations not_utf8_{};
  JsonShape shape_ = JsonShape::lines;  // shape of the open file
  RecordSplitter splitter_{JsonShape::lines};
};

/// Splits a block into the texts of its documents. Texts that are not substrings of its bytes are
/// written to `storage`. Adds statistics on JSON records to `report`.
///
/// Throws: as documents_of_records.
[[nodiscard]] std::vector<TextSpan> text_spans(const Block& block, const DocumentOptions& rule,
                                               std::string& storage, RecordReport& report);

/// Counts words as the WikiText literature does: tokens separated by white space, plus one
/// end-of-line token per line.
[[nodiscard]] std::size_t count_words(std::string_view text);

/// Checks that a block is valid UTF-8; JSON is checked when its strings are decoded.
///
/// Throws: Error{data} naming the file and the offset of the first invalid byte.
void check_utf8(const Block& block);

}  // namespace dtrain::data
