// Literals for ids: 3_b is block 3, 1_m is microbatch 1. Does not need LibTorch.
#pragma once

#include <cstdint>

#include "dtrain/data/batch.h"
#include "dtrain/model/block_range.h"

namespace dtrain::testing {

consteval model::BlockId operator""_b(unsigned long long value) {
  return model::BlockId(static_cast<std::int64_t>(value));
}
consteval data::MicrobatchId operator""_m(unsigned long long value) {
  return data::MicrobatchId(static_cast<std::int64_t>(value));
}

}  // namespace dtrain::testing
