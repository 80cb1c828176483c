// Writes token files without knowing their size in advance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dtrain/base/checksum.h"
#include "dtrain/base/io/file_system.h"
#include "dtrain/data/tokens/token_header.h"

namespace dtrain::data {

/// Returns the bytes per token in a file: 1, 2 or 4.
[[nodiscard]] std::int64_t bytes_per_token(std::int64_t vocab);

/// Appends tokens in the file's encoding, `width` bytes each.
void append_tokens(std::span<const std::uint32_t> tokens, std::int64_t width,
                   std::vector<std::byte>& bytes);

/// A list of numbers spilled to disk, in an unlinked file beside the output. The file disappears
/// with this object or its process.
class SpilledNumbers {
 public:
  explicit SpilledNumbers(const std::string& beside);
  void add(std::uint64_t number);
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }
  /// Calls visit(bytes) with consecutive chunks of the numbers.
  template <typename Visit>
  void read_all(Visit visit);

 private:
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  [[noreturn]] void refuse() const;

  std::string beside_;
  std::unique_ptr<std::FILE, Closer> file_;
  std::int64_t size_ = 0;
};

/// Writes a token file of version 3. The complete file appears with commit().
///
/// Throws:  Error{data} naming the file if it cannot be written or has no tokens.
/// Threads: one caller.
class TokenWriter {
 public:
  struct Origin {
    TokenizerKind tokenizer = TokenizerKind::unknown;
    std::int64_t vocab = kByteVocab;
    std::string_view model = {};  ///< the tokenizer's model
  };
  TokenWriter(std::string path, const Origin& origin);

  /// tokens: bytes_per_token(vocab) bytes each.
  void add(std::span<const std::byte> tokens);
  void end_document() { documents_.add(static_cast<std::uint64_t>(num_tokens())); }
  void count_text(std::int64_t num_bytes, std::int64_t num_words);

  [[nodiscard]] std::int64_t num_tokens() const noexcept { return bytes_ / width_; }
  [[nodiscard]] std::int64_t num_documents() const noexcept { return documents_.size(); }

  /// Writes the remaining content; commit() then renames the file. At least one token must have
  /// been written.
  void finish();
  void commit() { file_.commit(); }

 private:
  void write_tail(std::span<const std::byte> bytes);

  std::string path_;
  base::AtomicFile file_;
  SpilledNumbers documents_;
  base::Checksum checksum_;
  base::Checksum tail_checksum_;
  TokenizerKind tokenizer_;
  std::int64_t vocab_;
  std::int64_t width_;
  std::string model_;
  std::int64_t bytes_ = 0;  // bytes of tokens written
  std::int64_t num_bytes_ = 0;
  std::int64_t num_words_ = 0;
};

}  // namespace dtrain::data
