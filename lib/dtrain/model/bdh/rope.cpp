#include "dtrain/model/bdh/rope.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>

#include <numbers>

namespace dtrain::model::bdh {

at::Tensor rope_frequencies(std::int64_t neurons) {
  constexpr double kTheta = 65536.0;
  const auto options = at::TensorOptions().dtype(at::kFloat);
  const at::Tensor pair = at::arange(neurons, options).div(2, "floor").mul(2);  // (N)
  const at::Tensor power = at::pow(at::Scalar(kTheta), pair.div(neurons));      // (N)
  return power.reciprocal().div(2 * std::numbers::pi);
}

at::Tensor rope_rotations(std::int64_t begin, std::int64_t end, std::int64_t neurons,
                          at::ScalarType dtype) {
  const auto options = at::TensorOptions().dtype(at::kFloat);
  const at::Tensor frequency =
      rope_frequencies(neurons).view({neurons / 2, 2}).select(1, 0);         // (N/2)
  const at::Tensor position = at::arange(begin, end, options).unsqueeze(1);  // (T, 1)
  const at::Tensor phase =
      position.mul(frequency).remainder(1).mul(2 * std::numbers::pi);  // (T, N/2)
  return at::complex(phase.cos().to(dtype), phase.sin().to(dtype));
}

at::Tensor rope_rotate(const at::Tensor& v, const at::Tensor& rotations) {
  auto pairs = v.sizes().vec();
  pairs.back() /= 2;
  pairs.push_back(2);
  const at::Tensor turned = at::view_as_complex(v.view(pairs)).mul(rotations);  // (..., T, N/2)
  return at::view_as_real(turned).view(v.sizes());
}

const at::Tensor& RopeTables::rotations(std::int64_t length, at::ScalarType dtype) {
  const bool fits = rotations_.defined() && rotations_.size(0) == length &&
                    c10::toRealValueType(rotations_.scalar_type()) == dtype;
  if (!fits) rotations_ = rope_rotations(0, length, neurons_, dtype);
  return rotations_;
}

}  // namespace dtrain::model::bdh
