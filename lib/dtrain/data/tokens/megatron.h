// Reads the index file that Megatron writes beside its tokens: FILE.idx for FILE.bin.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/base/io/input_file.h"
#include "dtrain/data/tokens/number_type.h"

namespace dtrain::data {

/// Returns the index path of FILE.bin; empty for other names.
[[nodiscard]] std::string index_path_of(const std::string& tokens);

/// Reads a Megatron index of any size in bounded memory.
///
/// Throws:  Error{data} naming the index if it has another version or number type, is truncated, or
///          contradicts the token file.
/// Threads: one caller.
/// Source:  Megatron-LM, megatron/core/datasets/indexed_dataset.py.
class MegatronIndex {
 public:
  /// Returns null if the token file has no index beside it.
  [[nodiscard]] static std::unique_ptr<MegatronIndex> open(const base::InputFile& tokens);

  [[nodiscard]] NumberType type() const noexcept { return type_; }
  /// Returns the ends of the next documents up to `limit`, as token positions in the file.
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
  std::int64_t last_end_ = 0;  // last document end returned so far
};

}  // namespace dtrain::data
