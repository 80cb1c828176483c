#include "dtrain/model/vector_math.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>

namespace dtrain::model {

void warm_up_vector_math() {
  static const bool are_made = [] {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      const at::Tensor few = at::ones({8}, at::TensorOptions().dtype(dtype));
      (void)few.exp().log();
      (void)few.cos();
      (void)few.sin();
    }
    return true;
  }();
  (void)are_made;
}

}  // namespace dtrain::model
