// Types that row kernels and their callers share.
#pragma once

namespace dtrain::kernels {

/// A bfloat16 for code that must not include LibTorch's headers; laid out like c10::BFloat16.
struct Bfloat16Bits {
  unsigned short bits;
};

/// log sum exp(logits) = top + log_sum, where top is the largest logit. The terms are stored
/// separately, because their sum would lose the precision that near-certain tokens need.
template <typename W>
struct LogSum {
  W top;
  W log_sum;
};

}  // namespace dtrain::kernels
