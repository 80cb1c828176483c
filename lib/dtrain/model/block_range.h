// Ids of a model's blocks, without LibTorch: schedules are lists of them.
#pragma once

#include <cstdint>

#include "dtrain/base/index.h"

namespace dtrain::model {

/// Index of a block in its model; a stage of a pipeline counts its own blocks.
using BlockId = base::Index<struct BlockTag>;

/// Blocks from begin to end, without end itself.
struct BlockRange {
  BlockId begin;
  BlockId end;

  [[nodiscard]] std::int64_t size() const { return end - begin; }
  [[nodiscard]] base::IndexRange<BlockId> ids() const { return {begin, end}; }
  bool operator==(const BlockRange&) const = default;
};

}  // namespace dtrain::model
