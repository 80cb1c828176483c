#include "dtrain/param/arena.h"

#include "dtrain/base/check.h"

namespace dtrain::param {

ArenaLayout::ArenaLayout(std::span<const ParameterSpec> specs) {
  for (const ParameterSpec& spec : specs) {
    const std::int64_t size = spec.num_elements();
    ranges_.push_back({num_elements_, num_elements_ + size});
    shapes_.push_back(spec.shape);
    num_elements_ += (size + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
  }
}

ElementRange ArenaLayout::range(ParameterId id) const {
  return ranges_.at(static_cast<std::size_t>(id));
}

at::IntArrayRef ArenaLayout::shape(ParameterId id) const {
  return shapes_.at(static_cast<std::size_t>(id));
}

Arena::Arena(const ArenaLayout& layout, at::ScalarType dtype, const ArenaAllocator& allocate) {
  const auto element_size = static_cast<std::int64_t>(c10::elementSize(dtype));
  flat_ = allocate(layout.num_elements() * element_size).view(dtype);
  DTRAIN_CHECK(flat_.numel() == layout.num_elements());
  for (ParameterId id = 0; id < layout.num_parameters(); ++id) {
    views_.push_back(slice(layout.range(id)).view(layout.shape(id)));
  }
}

const at::Tensor& Arena::view(ParameterId id) const {
  return views_.at(static_cast<std::size_t>(id));
}

at::Tensor Arena::slice(ElementRange range) const {
  return flat_.narrow(0, range.begin, range.size());
}

}  // namespace dtrain::param
