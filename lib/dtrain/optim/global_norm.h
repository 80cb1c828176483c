// The global gradient norm, with the same bits however gradients are spread over ranks.
#pragma once

#include <span>

#include "dtrain/param/arena.h"

namespace dtrain::optim {

/// Elements of a parameter that are summed together; a shard boundary never needs to know more than
/// whole blocks.
inline constexpr std::int64_t kNormBlock = 4096;

/// The L2 norm over all parameters of `gradients`: float64 sums of squares over blocks of
/// kNormBlock elements of each parameter, added in the order of exported names, then of blocks.
[[nodiscard]] double global_norm(const param::Arena& gradients, const param::ArenaLayout& layout,
                                 std::span<const param::ParameterSpec> specs);

/// What to multiply gradients by so that their norm is at most max_norm; 1 where it is, or where
/// max_norm is 0.
[[nodiscard]] double clip_factor(double norm, double max_norm);

}  // namespace dtrain::optim
