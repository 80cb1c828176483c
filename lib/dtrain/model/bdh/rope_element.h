// The RoPE rotation of one pair of neurons; shared by the CPU and device kernels.
#pragma once

#include "dtrain/base/device_function.h"

namespace dtrain::model::bdh {

/// in, out: a pair of 16-bit values. rotation: cosine and sine. direction: 1 rotates, -1 inverts.
template <typename scalar_t>
[[gnu::always_inline]] DTRAIN_DEVICE_FUNCTION inline void rotate_pair(const scalar_t* in,
                                                                      scalar_t* out,
                                                                      const float* rotation,
                                                                      float direction) {
  const auto a = static_cast<float>(in[0]);
  const auto b = static_cast<float>(in[1]);
  const float cosine = rotation[0];
  const float sine = direction * rotation[1];
  out[0] = static_cast<scalar_t>(a * cosine - b * sine);
  out[1] = static_cast<scalar_t>(b * cosine + a * sine);
}

}  // namespace dtrain::model::bdh
