#include "dtrain/param/parameter_spec.h"

#include <functional>
#include <numeric>

#include "dtrain/base/error.h"

namespace dtrain::param {

std::int64_t ParameterSpec::num_elements() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

ParameterSpec ParameterSpec::not_held() const {
  ParameterSpec spec = *this;
  if (!spec.cut) spec.cut = TensorCut{.dim = 0, .begin = 0, .whole = shape.front()};
  spec.shape[static_cast<std::size_t>(spec.cut->dim)] = 0;
  return spec;
}

std::vector<std::int64_t> ParameterSpec::whole_shape() const {
  std::vector<std::int64_t> whole = shape;
  if (cut) whole[static_cast<std::size_t>(cut->dim)] = cut->whole;
  return whole;
}

std::vector<std::int64_t> ParameterSpec::exported(const std::vector<std::int64_t>& of_view) const {
  std::vector<std::int64_t> result;
  for (const std::int64_t dim : export_order) {
    result.push_back(of_view[static_cast<std::size_t>(dim)]);
  }
  return result;
}

at::Tensor exported_view(const ParameterSpec& spec, const at::Tensor& storage) {
  DTRAIN_CHECK(storage.sizes() == at::IntArrayRef(spec.whole_shape()), "{}", spec.name);
  return storage.view(spec.export_view).permute(spec.export_order);
}

}  // namespace dtrain::param
