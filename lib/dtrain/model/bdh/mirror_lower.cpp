#include "dtrain/model/bdh/mirror_lower.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>

#include "dtrain/device/operator.h"

namespace dtrain::model::bdh {
namespace {

constexpr std::int64_t kTile = 32;  // rows whose columns are walked together

// Rows begin to end of one matrix. The sums with zero are those of lower + lowerᵀ: -0 becomes 0.
template <typename scalar_t>
void mirror_rows(const scalar_t* in, scalar_t* out, std::int64_t length, std::int64_t begin,
                 std::int64_t end) {
  const scalar_t kZero(0);
  for (std::int64_t column = 0; column < length; ++column) {
    for (std::int64_t row = begin; row < end; ++row) {
      const scalar_t own = column < row ? in[row * length + column] : kZero;
      const scalar_t mirrored = row < column ? in[column * length + row] : kZero;
      out[row * length + column] = own + mirrored;
    }
  }
}

at::Tensor mirror_on_cpu(const at::Tensor& matrices) {
  const std::int64_t length = matrices.size(-1);
  at::Tensor out = at::empty_like(matrices);
  const std::int64_t tiles = (length + kTile - 1) / kTile;
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kBFloat16, at::kHalf, matrices.scalar_type(), "mirror_lower", [&] {
        const auto* in_data = matrices.const_data_ptr<scalar_t>();
        auto* out_data = out.mutable_data_ptr<scalar_t>();
        at::parallel_for(0, matrices.size(0) * tiles, 1,
                         [&](std::int64_t first, std::int64_t last) {
                           for (std::int64_t tile = first; tile < last; ++tile) {
                             const std::int64_t at = tile / tiles * length * length;
                             const std::int64_t begin = tile % tiles * kTile;
                             mirror_rows(in_data + at, out_data + at, length, begin,
                                         std::min(begin + kTile, length));
                           }
                         });
      });
  return out;
}

TORCH_LIBRARY_FRAGMENT(dtrain, operators) {
  operators.def("mirror_lower(Tensor matrices) -> Tensor");
}
TORCH_LIBRARY_IMPL(dtrain, CPU, kernels) { kernels.impl("mirror_lower", mirror_on_cpu); }

}  // namespace

at::Tensor mirror_lower(const at::Tensor& matrices) {
  static const device::Operator<at::Tensor(const at::Tensor&)> kMirror("dtrain::mirror_lower");
  return kMirror(matrices.contiguous());
}

}  // namespace dtrain::model::bdh
