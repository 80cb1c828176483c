// Neighbouring blocks of a model.
#pragma once

#include <cstdint>

namespace dtrain::model {

/// Blocks from begin to end, without end itself.
struct BlockRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  [[nodiscard]] std::int64_t size() const { return end - begin; }
  bool operator==(const BlockRange&) const = default;
};

}  // namespace dtrain::model
