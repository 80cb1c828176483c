#include "dtrain/param/arena.h"

#include <ATen/ops/zeros.h>

#include <numeric>

#include "dtrain/base/check.h"

namespace dtrain::param {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t step) {
  return (value + step - 1) / step * step;
}

}  // namespace

at::Tensor private_memory(std::int64_t bytes) {
  return at::zeros({bytes}, at::TensorOptions().dtype(at::kByte));
}

ArenaLayout::ArenaLayout(std::span<const ParameterSpec> specs, const LayoutOptions& options)
    : num_shards_(options.num_shards) {
  DTRAIN_CHECK(num_shards_ >= 1 && !options.unit_begins.empty() &&
               options.unit_begins.front() == 0);
  for (std::size_t unit = 0; unit < options.unit_begins.size(); ++unit) {
    const bool is_last = unit + 1 == options.unit_begins.size();
    const auto end =
        is_last ? static_cast<ParameterId>(specs.size()) : options.unit_begins[unit + 1];
    Unit current{.range = {num_elements_, num_elements_}, .parameters = {}};
    for (ParameterId id = options.unit_begins[unit]; id < end; ++id) {
      const ParameterSpec& spec = specs[static_cast<std::size_t>(id)];
      const std::int64_t begin = current.range.end;
      ranges_.push_back({begin, begin + spec.num_elements()});
      shapes_.push_back(spec.shape);
      units_of_.push_back(static_cast<std::int64_t>(unit));
      current.parameters.push_back(id);
      current.range.end = begin + round_up(spec.num_elements(), kArenaAlignment);
    }
    current.range.end =
        current.range.begin + round_up(current.range.size(), kArenaAlignment * num_shards_);
    num_elements_ = current.range.end;
    units_.push_back(std::move(current));
  }
}

ElementRange ArenaLayout::range(ParameterId id) const {
  return ranges_.at(static_cast<std::size_t>(id));
}

at::IntArrayRef ArenaLayout::shape(ParameterId id) const {
  return shapes_.at(static_cast<std::size_t>(id));
}

std::int64_t ArenaLayout::unit_of(ParameterId id) const {
  return units_of_.at(static_cast<std::size_t>(id));
}

ElementRange ArenaLayout::unit_range(std::int64_t unit) const {
  return units_.at(static_cast<std::size_t>(unit)).range;
}

std::int64_t ArenaLayout::largest_unit() const {
  std::int64_t most = 0;
  for (const Unit& unit : units_) most = std::max(most, unit.range.size());
  return most;
}

std::span<const ParameterId> ArenaLayout::parameters_of(std::int64_t unit) const {
  return units_.at(static_cast<std::size_t>(unit)).parameters;
}

ElementRange ArenaLayout::shard_range(std::int64_t unit, std::int64_t shard) const {
  const ElementRange whole = unit_range(unit);
  const std::int64_t size = whole.size() / num_shards_;
  return {whole.begin + shard * size, whole.begin + (shard + 1) * size};
}

ElementRange ArenaLayout::range_in(ParameterId id, std::int64_t shard) const {
  return common(range(id), shard_range(unit_of(id), shard));
}

std::vector<ElementRange> ArenaLayout::owned_by(std::int64_t shard) const {
  if (num_shards_ == 1) return {{0, num_elements_}};
  std::vector<ElementRange> owned;
  for (std::int64_t unit = 0; unit < num_units(); ++unit) owned.push_back(shard_range(unit, shard));
  return owned;
}

Arena::Arena(std::vector<ElementRange> parts, at::ScalarType dtype, const ArenaAllocator& allocate)
    : parts_(std::move(parts)) {
  const std::int64_t count =
      std::accumulate(parts_.begin(), parts_.end(), std::int64_t{0},
                      [](std::int64_t sum, ElementRange part) { return sum + part.size(); });
  flat_ = allocate(count * static_cast<std::int64_t>(c10::elementSize(dtype))).view(dtype);
  DTRAIN_CHECK(flat_.numel() == count);
}

Arena::Arena(const ArenaLayout& layout, at::ScalarType dtype, const ArenaAllocator& allocate)
    : Arena(std::vector<ElementRange>{{0, layout.num_elements()}}, dtype, allocate) {
  for (ParameterId id = 0; id < layout.num_parameters(); ++id) {
    views_.push_back(slice(layout.range(id)).view(layout.shape(id)));
  }
}

Arena Arena::of_shard(const ArenaLayout& layout, std::int64_t shard, at::ScalarType dtype,
                      const ArenaAllocator& allocate) {
  if (layout.num_shards() == 1) return {layout, dtype, allocate};
  return {layout.owned_by(shard), dtype, allocate};
}

const at::Tensor& Arena::view(ParameterId id) const {
  return views_.at(static_cast<std::size_t>(id));
}

at::Tensor Arena::slice(ElementRange range) const {
  return flat_.narrow(0, position_of(range), range.size());
}

std::int64_t Arena::position_of(ElementRange range) const {
  std::int64_t position = 0;
  for (const ElementRange part : parts_) {
    if (part.begin <= range.begin && range.end <= part.end) {
      return position + range.begin - part.begin;
    }
    position += part.size();
  }
  base::fail(base::ErrorKind::internal, "elements {} to {} are not held here in one piece",
             range.begin, range.end);
}

}  // namespace dtrain::param
