#include "dtrain/optim/grad_scaler.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "dtrain/base/error.h"

namespace dtrain::optim {
namespace {

// Gradients are summed in float32, which a larger scale could overflow.
constexpr double kLargestScale = 0x1p64;

enum Entry : std::size_t { kScale, kGoodSteps, kSkipped };

}  // namespace

GradScaler::GradScaler() : state_(at::zeros({3}, at::TensorOptions().dtype(at::kDouble))) {
  state_.mutable_data_ptr<double>()[kScale] = kInitialScale;
}

double GradScaler::scale() const { return state_.const_data_ptr<double>()[kScale]; }

std::int64_t GradScaler::num_skipped() const {
  return static_cast<std::int64_t>(state_.const_data_ptr<double>()[kSkipped]);
}

void GradScaler::update(bool found_overflow) {
  auto* state = state_.mutable_data_ptr<double>();
  if (!found_overflow) {
    if (++state[kGoodSteps] < kGrowthInterval) return;
    state[kGoodSteps] = 0;
    state[kScale] = std::min(state[kScale] * 2, kLargestScale);
    return;
  }
  ++state[kSkipped];
  state[kGoodSteps] = 0;
  if (state[kScale] <= kSmallestScale) {
    base::fail(base::ErrorKind::numerics,
               "float16 gradients still overflow at the smallest loss scale, {}, after {} skipped "
               "steps",
               kSmallestScale, num_skipped());
  }
  state[kScale] = std::max(state[kScale] / 2, kSmallestScale);
}

}  // namespace dtrain::optim
