// Ids and ranges of a model's blocks, without LibTorch, so that pipeline schedules can use them.
#pragma once

#include <cstdint>

#include "dtrain/base/index.h"

namespace dtrain::model {

/// Index of a block in its model; a pipeline stage numbers its own blocks from 0.
using BlockId = base::Index<struct BlockTag>;

/// Blocks [begin, end).
struct BlockRange {
  BlockId begin;
  BlockId end;

  [[nodiscard]] std::int64_t size() const { return end - begin; }
  [[nodiscard]] base::IndexRange<BlockId> ids() const { return {begin, end}; }
  bool operator==(const BlockRange&) const = default;
};

}  // namespace dtrain::model
