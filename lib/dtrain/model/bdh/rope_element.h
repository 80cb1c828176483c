// How one pair of neurons is turned, for the CPU and for kernels of devices.
#pragma once

#include "dtrain/base/device_function.h"

namespace dtrain::model::bdh {

/// in, out: the pair, in 16 bits. turn: cosine and sine. direction: 1 turns, -1 turns back.
template <typename scalar_t>
[[gnu::always_inline]] DTRAIN_DEVICE_FUNCTION inline void turn_pair(const scalar_t* in,
                                                                    scalar_t* out,
                                                                    const float* turn,
                                                                    float direction) {
  const auto a = static_cast<float>(in[0]);
  const auto b = static_cast<float>(in[1]);
  const float cosine = turn[0];
  const float sine = direction * turn[1];
  out[0] = static_cast<scalar_t>(a * cosine - b * sine);
  out[1] = static_cast<scalar_t>(b * cosine + a * sine);
}

}  // namespace dtrain::model::bdh
