// A gradient that a native backward pass sums.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <utility>

#include "dtrain/param/parameter_use.h"

namespace dtrain::model::bdh {

/// Where the gradient of a weight is summed; an undefined tensor wants none.
struct FusedGradient {
  at::Tensor sum = {};    ///< the weight's shape, of the wide type, contiguous
  bool is_first = false;  ///< `sum` has no value yet
};

/// A gradient that is summed in its place, or beside it where that is of another type than `wide`.
class GradientSum {
 public:
  GradientSum(param::GradientPlace place, at::ScalarType wide) : place_(std::move(place)) {
    if (!place_.view.defined()) return;
    is_direct_ = place_.view.scalar_type() == wide && place_.view.is_contiguous();
    sum_ = is_direct_ ? place_.view
                      : at::empty(place_.view.sizes(), place_.view.options().dtype(wide));
  }
  [[nodiscard]] FusedGradient get() const {
    return {.sum = sum_, .is_first = !is_direct_ || place_.is_first};
  }
  /// Brings the sum to its place; once, when all is added.
  void finish() {
    if (!is_direct_ && sum_.defined()) place_.take(sum_);
  }

 private:
  param::GradientPlace place_;
  at::Tensor sum_;
  bool is_direct_ = false;
};

}  // namespace dtrain::model::bdh
