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

ArenaLayout::ArenaLayout(const ParameterSpecs& specs, const LayoutOptions& options)
    : num_shards_(options.num_shards) {
  DTRAIN_CHECK(num_shards_ >= 1 && !options.unit_begins.empty() &&
               options.unit_begins.front() == ParameterId(0));
  for (const UnitId unit : options.unit_begins.ids()) {
    const bool is_last = unit + 1 == options.unit_begins.end_id();
    const ParameterId end = is_last ? specs.end_id() : options.unit_begins[unit + 1];
    Unit current{.range = {num_elements_, num_elements_},
                 .parameters = {options.unit_begins[unit], end}};
    for (const ParameterId id : current.parameters) {
      const ParameterSpec& spec = specs[id];
      const std::int64_t begin = current.range.end;
      parameters_.push_back({{begin, begin + spec.num_elements()}, spec.shape, unit});
      current.range.end = begin + round_up(spec.num_elements(), kArenaAlignment);
    }
    current.range.end =
        current.range.begin + round_up(current.range.size(), kArenaAlignment * num_shards_);
    num_elements_ = current.range.end;
    units_.push_back(current);
  }
}

std::int64_t ArenaLayout::largest_unit() const {
  std::int64_t most = 0;
  for (const Unit& unit : units_) most = std::max(most, unit.range.size());
  return most;
}

ElementRange ArenaLayout::shard_range(UnitId unit, ShardId shard) const {
  const ElementRange whole = unit_range(unit);
  const std::int64_t size = whole.size() / num_shards_;
  const std::int64_t begin = whole.begin + shard.value() * size;
  return {begin, begin + size};
}

ElementRange ArenaLayout::range_in(ParameterId id, ShardId shard) const {
  return common(range(id), shard_range(unit_of(id), shard));
}

std::vector<ElementRange> ArenaLayout::owned_by(ShardId shard) const {
  if (num_shards_ == 1) return {{0, num_elements_}};
  std::vector<ElementRange> owned;
  for (const UnitId unit : units()) owned.push_back(shard_range(unit, shard));
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
  for (const ParameterId id : layout.parameters()) {
    views_.push_back(slice(layout.range(id)).view(layout.shape(id)));
  }
}

Arena Arena::of_shard(const ArenaLayout& layout, ShardId shard, at::ScalarType dtype,
                      const ArenaAllocator& allocate) {
  if (layout.num_shards() == 1) return {layout, dtype, allocate};
  return {layout.owned_by(shard), dtype, allocate};
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
