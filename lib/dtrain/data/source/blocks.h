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

namespace dtrain::data {

/// What files hold.
enum class Format {
  text,        ///< each file is a document
  json_lines,  ///< each line is an object, one field of which is a document
  wikitext,    ///< articles, each a document, begin with " = Title = "
};

/// A stretch of one document.
struct Part {
  std::string_view text;  ///< of the block's bytes
  bool begins_document = true;
  bool ends_document = true;
};

/// Some of a file. Its parts follow from parts_of.
struct Block {
  std::string bytes{};
  std::string file{};           ///< path, for messages
  std::int64_t offset = 0;      ///< of bytes in the file, decompressed
  std::int64_t first_line = 1;  ///< of json_lines
  Format format = Format::text;
  bool begins_document = true;
  bool ends_document = true;
};

struct BlockOptions {
  std::vector<std::string> files{};
  Format format = Format::text;
  /// Where a text may be cut: Tokenizer::cut. Returns 0 for nowhere.
  std::function<std::size_t(std::string_view)> cut{};
  std::size_t block_bytes = std::size_t{1} << 20;
  /// A document without a place to cut, or a line of JSON, is at most so long; longer documents are
  /// cut between two characters.
  std::size_t longest_part = std::size_t{16} << 20;
};

/// Reads files one after the other. The blocks depend on nothing but the files and the options.
///
/// Threads: one caller.
class BlockReader {
 public:
  explicit BlockReader(BlockOptions options) : options_(std::move(options)) {}

  /// Returns false at the end of the last file.
  ///
  /// Throws: Error{data} naming a file that cannot be read, is no text, or has too long a line.
  [[nodiscard]] bool next(Block& block);
  /// Bytes of files, as they lie on the disk, that were read so far.
  [[nodiscard]] std::int64_t consumed() const noexcept;

 private:
  void open_next_file();
  void read_more();
  [[nodiscard]] std::size_t bytes_to_take();

  BlockOptions options_;
  std::size_t next_file_ = 0;
  std::unique_ptr<ByteStream> stream_;  // null: no file is open
  std::string buffer_;                  // read and not yet given
  bool is_at_end_ = false;              // of the open file
  bool is_first_ = true;                // the next block is the file's first
  std::int64_t offset_ = 0;             // of buffer_
  std::int64_t line_ = 1;               // of buffer_
  std::int64_t consumed_before_ = 0;    // by files that are done
};

/// How JSON objects become documents.
struct LineRule {
  std::string field{};        ///< the member that holds the text
  bool adds_newline = false;  ///< to a text that does not end with one
};

/// The documents of a block. Those of json_lines are written to `storage`.
///
/// Throws: Error{data} naming file and line of what is no JSON, or lacks the field.
[[nodiscard]] std::vector<Part> parts_of(const Block& block, const LineRule& rule,
                                         std::string& storage);

/// Words as the literature of WikiText counts them: what stands between spaces, and a sign for the
/// end of each line.
[[nodiscard]] std::size_t count_words(std::string_view text);

/// Throws: Error{data} naming file and place of the first byte that is no UTF-8.
void check_utf8(const Block& block);

}  // namespace dtrain::data
