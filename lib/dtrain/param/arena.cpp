#include "dtrain/param/arena.h"

#include <ATen/ops/zeros.h>

#include <numeric>

#include "dtrain/base/error.h"

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
  for (const ParameterSpec& spec : specs)
    parameters_.push_back({.range = {}, .shape = spec.shape, .unit = {}});
  for (const ParameterId id : options.frozen) parameters_[id].is_frozen = true;
  for (const UnitId unit : options.unit_begins.ids()) {
    const bool is_last = unit + 1 == options.unit_begins.end_id();
    const ParameterId end = is_last ? specs.end_id() : options.unit_begins[unit + 1];
    ParameterId begin = options.unit_begins[unit];
    std::optional<bool> is_frozen;  // of the held parameters since `begin`; empty if none
    for (ParameterId id = begin; id < end; ++id) {
      if (!specs[id].is_held()) continue;
      if (is_frozen && *is_frozen != parameters_[id].is_frozen) {
        add_unit(specs, {.range = {}, .parameters = {begin, id}, .is_frozen = *is_frozen});
        begin = id;
      }
      is_frozen = parameters_[id].is_frozen;
    }
    add_unit(specs,
             {.range = {}, .parameters = {begin, end}, .is_frozen = is_frozen.value_or(false)});
  }
}

void ArenaLayout::add_unit(const ParameterSpecs& specs, Unit unit) {
  unit.range = {num_elements_, num_elements_};
  for (const ParameterId id : unit.parameters) {
    const std::int64_t elements = specs[id].num_elements();
    parameters_[id].range = {unit.range.end, unit.range.end + elements};
    parameters_[id].unit = units_.end_id();
    unit.range.end += round_up(elements, kArenaAlignment);
  }
  unit.range.end = unit.range.begin + round_up(unit.range.size(), kArenaAlignment * num_shards_);
  num_elements_ = unit.range.end;
  units_.push_back(unit);
}

std::int64_t ArenaLayout::largest_unit(Elements which) const {
  std::int64_t most = 0;
  for (const Unit& unit : units_) {
    if (which == Elements::all || !unit.is_frozen) most = std::max(most, unit.range.size());
  }
  return most;
}

ElementRange ArenaLayout::shard_range(UnitId unit, ShardId shard) const {
  const ElementRange whole = unit_range(unit);
  const std::int64_t size = whole.size() / num_shards_;
  const std::int64_t begin = whole.begin + shard.value() * size;
  return {begin, begin + size};
}

ElementRange ArenaLayout::range_in(ParameterId id, ShardId shard) const {
  return intersection(range(id), shard_range(unit_of(id), shard));
}

std::vector<ElementRange> ArenaLayout::ranges(Elements which) const {
  std::vector<ElementRange> runs;
  std::optional<bool> last;  // is_frozen of the previous unit
  for (const Unit& unit : units_) {
    if (unit.range.is_empty()) continue;
    const bool continues = last == unit.is_frozen;
    last = unit.is_frozen;
    if (unit.is_frozen && which == Elements::trained) continue;
    if (continues) {
      runs.back().end = unit.range.end;
    } else {
      runs.push_back(unit.range);
    }
  }
  return runs;
}

std::vector<ElementRange> ArenaLayout::ranges(Elements which, ShardId shard) const {
  if (num_shards_ == 1) return ranges(which);
  std::vector<ElementRange> parts;
  for (const UnitId unit : units()) {
    if (which == Elements::all || !is_frozen(unit)) parts.push_back(shard_range(unit, shard));
  }
  return parts;
}

std::int64_t ArenaLayout::num_trained() const {
  std::int64_t elements = 0;
  for (const ElementRange run : ranges(Elements::trained)) elements += run.size();
  return elements;
}

Arena::Arena(std::vector<ElementRange> parts, at::ScalarType dtype, const ArenaAllocator& allocate)
    : parts_(std::move(parts)) {
  const std::int64_t count =
      std::accumulate(parts_.begin(), parts_.end(), std::int64_t{0},
                      [](std::int64_t sum, ElementRange part) { return sum + part.size(); });
  // Not every allocator accepts 0 bytes, the size of an arena if all parameters are frozen.
  flat_ =
      (count == 0 ? allocate(kArenaAlignment).narrow(0, 0, 0) : allocate(bytes_of(count, dtype)))
          .view(dtype);
  DTRAIN_CHECK(flat_.numel() == count);
}

Arena::Arena(const ArenaLayout& layout, at::ScalarType dtype, const ArenaAllocator& allocate)
    : Arena(std::vector<ElementRange>{{0, layout.num_elements()}}, dtype, allocate) {
  make_views(layout);
}

Arena Arena::of_shard(const ArenaLayout& layout, ShardId shard, at::ScalarType dtype,
                      const ArenaAllocator& allocate) {
  if (layout.num_shards() == 1) return {layout, dtype, allocate};
  return {layout.ranges(Elements::all, shard), dtype, allocate};
}

Arena Arena::of_trained(const ArenaLayout& layout, at::ScalarType dtype,
                        const ArenaAllocator& allocate) {
  Arena arena(layout.ranges(Elements::trained), dtype, allocate);
  arena.make_views(layout);
  return arena;
}

Arena Arena::of_trained_shard(const ArenaLayout& layout, ShardId shard, at::ScalarType dtype,
                              const ArenaAllocator& allocate) {
  if (layout.num_shards() == 1) return of_trained(layout, dtype, allocate);
  return {layout.ranges(Elements::trained, shard), dtype, allocate};
}

void Arena::make_views(const ArenaLayout& layout) {
  for (const ParameterId id : layout.parameters()) {
    const ElementRange range = layout.range(id);
    views_.push_back(holds(range) ? slice(range).view(layout.shape(id)) : at::Tensor());
  }
}

at::Tensor Arena::slice(ElementRange range) const {
  const std::optional<std::int64_t> position = find(range);
  if (!position) {
    base::fail(base::ErrorKind::internal, "elements {} to {} are not contiguous in this arena",
               range.begin, range.end);
  }
  return flat_.narrow(0, *position, range.size());
}

// Returns the offset of the elements in flat(); empty unless the arena holds them contiguously. An
// empty range is in every arena.
std::optional<std::int64_t> Arena::find(ElementRange range) const {
  if (range.is_empty()) return 0;
  std::int64_t position = 0;
  for (const ElementRange part : parts_) {
    if (part.begin <= range.begin && range.end <= part.end) {
      return position + range.begin - part.begin;
    }
    position += part.size();
  }
  return std::nullopt;
}

}  // namespace dtrain::param
