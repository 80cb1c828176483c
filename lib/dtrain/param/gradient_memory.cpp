#include "dtrain/param/gradient_memory.h"

#include <ATen/core/grad_mode.h>

namespace dtrain::param {

void GradientMemory::add_gradient(ParameterId id, const at::Tensor& grad) {
  const at::NoGradGuard no_grad;
  const GradientPlace place = gradient_of(id);
  if (place.is_first) {
    place.view.copy_(grad);  // not 0 + grad: a negative zero keeps its sign
  } else {
    place.view.add_(grad);
  }
}

}  // namespace dtrain::param
