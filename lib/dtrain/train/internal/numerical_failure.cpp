#include "dtrain/train/internal/numerical_failure.h"

namespace dtrain::train {

std::string advice_on_nonfinite(const parallel::StepEngine& engine) {
  return engine.precision().scales_loss
             ? "use bfloat16 or float32 in place of float16, whose range is small, or lower --lr"
             : "lower --lr";
}

}  // namespace dtrain::train
