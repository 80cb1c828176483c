// Cuts inputs into blocks that are made into tokens by themselves, so that texts of any size pass
// through a bounded memory.
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

/// What files hold.
enum class Format {
  text,      ///< each file is a document
  json,      ///< objects, of each of which one field is a document
  wikitext,  ///< articles, each a document, begin with " = Title = "
};

/// A stretch of one document.
struct Part {
  std::string_view text;
  bool begins_document = true;
  bool ends_document = true;
};

/// Some of a file. Its parts follow from parts_of.
struct Block {
  std::string bytes{};
  std::string file{};           ///< path, for messages
  std::int64_t offset = 0;      ///< of bytes in the file, decompressed
  std::int64_t first_line = 1;  ///< of JSON
  Format format = Format::text;
  JsonShape shape = JsonShape::lines;
  bool begins_document = true;
  bool ends_document = true;
};

struct BlockOptions {
  std::vector<std::string> files{};
  Format format = Format::text;
  /// Where a text may be cut: Tokenizer::cut. Returns 0 for nowhere.
  std::function<std::size_t(std::string_view)> cut{};
  std::size_t block_bytes = std::size_t{1} << 20;
  /// A document without a place to cut is at most so long; longer ones are cut between two
  /// characters.
  std::size_t longest_part = std::size_t{16} << 20;
  /// A record of JSON, which is in memory as a whole.
  std::size_t longest_record = std::size_t{64} << 20;
  /// Refuse texts that begin as JSON does.
  bool refuses_json = true;
  /// As open_bytes.
  std::function<void()> on_wait{};
};

/// Reads files one after the other. The blocks depend on nothing but the files and the options.
///
/// Threads: one caller.
class BlockReader {
 public:
  explicit BlockReader(BlockOptions options) : options_(std::move(options)) {}

  /// Returns false at the end of the last file.
  ///
  /// Throws: Error{data} naming a file that cannot be read, is no text, has too long a record, or
  ///         ends within its JSON; Error{usage} naming one that is JSON where a text is expected.
  [[nodiscard]] bool next(Block& block);
  /// Bytes of files, as they lie on the disk, that were read so far.
  [[nodiscard]] std::int64_t consumed() const noexcept;
  /// The texts opened so far that do not begin as UTF-8.
  [[nodiscard]] const RecordPlaces& not_utf8() const noexcept { return not_utf8_; }

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
  std::unique_ptr<ByteStream> stream_;  // null: no file is open
  std::string buffer_;                  // read and not yet given
  bool is_at_end_ = false;              // of the open file
  bool is_first_ = true;                // the next block is the file's first
  std::int64_t offset_ = 0;             // of buffer_
  std::int64_t line_ = 1;               // of buffer_
  std::int64_t consumed_before_ = 0;    // by files that are done
  RecordPlaces not_utf8_{};
  JsonShape shape_ = JsonShape::lines;  // of the open file
  RecordSplitter splitter_{JsonShape::lines};
};

/// The documents of a block. Those that are not parts of its bytes are written to `storage`. Adds
/// what records of JSON hold to `report`.
///
/// Throws: as documents_of_records.
[[nodiscard]] std::vector<Part> parts_of(const Block& block, const DocumentRule& rule,
                                         std::string& storage, RecordReport& report);

/// Words as the literature of WikiText counts them: what stands between spaces, and a sign for the
/// end of each line.
[[nodiscard]] std::size_t count_words(std::string_view text);

/// Throws: Error{data} naming file and place of the first byte that is no UTF-8.
void check_utf8(const Block& block);

}  // namespace dtrain::data
