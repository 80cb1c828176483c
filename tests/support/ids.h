// Literals of ids: 3_p is parameter 3, 1_u is unit 1, 0_s is shard 0.
#pragma once

#include <cstdint>

#include "dtrain/param/arena.h"

namespace dtrain::testing {

consteval param::ParameterId operator""_p(unsigned long long value) {
  return param::ParameterId(static_cast<std::int64_t>(value));
}
consteval param::UnitId operator""_u(unsigned long long value) {
  return param::UnitId(static_cast<std::int64_t>(value));
}
consteval param::ShardId operator""_s(unsigned long long value) {
  return param::ShardId(static_cast<std::int64_t>(value));
}

}  // namespace dtrain::testing
