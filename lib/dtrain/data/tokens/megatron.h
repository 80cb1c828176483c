// The index that Megatron writes beside its tokens: FILE.idx of FILE.bin.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/base/io/input_file.h"
#include "dtrain/data/tokens/number_type.h"

namespace dtrain::data {

/// The path of the index of FILE.bin; empty for other names.
[[nodiscard]] std::string index_path_of(const std::string& tokens);

/// Reads what stands beside a file of tokens, whatever its size, in a bounded memory.
///
/// Throws:  Error{data} naming the index if it is of another version or kind of number, truncated,
///          or does not agree with the file of tokens.
/// Threads: one caller.
/// Source:  Megatron-LM, megatron/core/datasets/indexed_dataset.py.
class MegatronIndex {
 public:
  /// Null if no index stands beside the tokens.
  [[nodiscard]] static std::unique_ptr<MegatronIndex> open(const base::InputFile& tokens);

  [[nodiscard]] NumberType type() const noexcept { return type_; }
  /// The ends of the next documents, in tokens from the file's begin, up to `limit`.
  [[nodiscard]] std::vector<std::int64_t> ends_up_to(std::int64_t limit);

 private:
  MegatronIndex(base::InputFile index, std::int64_t bytes_of_tokens);
  void check_size(std::int64_t bytes_of_tokens) const;
  template <typename Number>
  [[nodiscard]] Number number_at(std::int64_t offset) const;
  [[nodiscard]] std::int64_t end_of_document(std::int64_t document) const;

  base::InputFile index_;
  NumberType type_;
  std::int64_t num_sequences_ = 0;
  std::int64_t num_documents_ = 0;
  std::int64_t num_tokens_ = 0;
  std::int64_t next_document_ = 0;
  std::int64_t last_end_ = 0;  // of the documents that were given
};

}  // namespace dtrain::data
