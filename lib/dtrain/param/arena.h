// Flat storage for all parameters of a rank, or for their gradients or moments, with one view per
// parameter.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "dtrain/param/parameter_spec.h"

namespace dtrain::param {

/// Every parameter starts at a multiple of this many elements, so that views are aligned and shards
/// can be split there.
inline constexpr std::int64_t kArenaAlignment = 64;

/// Elements [begin, end) of an arena.
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  [[nodiscard]] std::int64_t size() const { return end - begin; }
  [[nodiscard]] bool is_empty() const { return end <= begin; }
  bool operator==(const ElementRange&) const = default;
};

/// Returns the intersection of two ranges; empty if they are disjoint.
[[nodiscard]] inline ElementRange intersection(ElementRange a, ElementRange b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

/// The elements that a query of a layout covers.
enum class Elements {
  all,
  trained  ///< of trained units only
};

/// Index of a unit: consecutive parameters that are gathered, freed and reduced together. All
/// parameters of a unit are trained, or all are frozen.
using UnitId = base::Index<struct UnitTag>;
/// Index of a shard: every unit is split into the same number of equal shards.
using ShardId = base::Index<struct ShardTag>;

/// How parameters are grouped into units and split into shards.
struct LayoutOptions {
  /// The first parameter of each unit, ascending from 0.
  base::IndexedVector<UnitId, ParameterId> unit_begins = {ParameterId(0)};
  std::int64_t num_shards = 1;
  /// Parameters that are never updated, and so have no gradients or optimizer state. A unit with both
  /// frozen and trained parameters is split between them.
  std::vector<ParameterId> frozen = {};
};

/// The offset of each parameter in every arena of a job. Units are padded so that they divide into
/// equal shards; padding stays zero in every arena. Arenas of gradients and optimizer state hold
/// trained units only, and address elements by the same layout offsets.
class ArenaLayout {
 public:
  explicit ArenaLayout(const ParameterSpecs& specs, const LayoutOptions& options = {});

  [[nodiscard]] std::int64_t num_parameters() const { return parameters_.size(); }
  [[nodiscard]] base::IndexRange<ParameterId> parameters() const { return parameters_.ids(); }
  [[nodiscard]] std::int64_t num_elements() const { return num_elements_; }  ///< padding included
  /// Returns the number of elements of all trained units, padding included.
  [[nodiscard]] std::int64_t num_trained() const;
  /// The elements of a parameter, without padding.
  [[nodiscard]] ElementRange range(ParameterId id) const { return parameters_[id].range; }
  [[nodiscard]] at::IntArrayRef shape(ParameterId id) const { return parameters_[id].shape; }
  [[nodiscard]] bool is_frozen(ParameterId id) const { return parameters_[id].is_frozen; }

  [[nodiscard]] std::int64_t num_units() const { return units_.size(); }
  [[nodiscard]] base::IndexRange<UnitId> units() const { return units_.ids(); }
  [[nodiscard]] UnitId unit_of(ParameterId id) const { return parameters_[id].unit; }
  /// Padding included.
  [[nodiscard]] ElementRange unit_range(UnitId unit) const { return units_[unit].range; }
  /// Returns the number of elements of the largest unit, padding included; 0 if none is covered.
  [[nodiscard]] std::int64_t largest_unit(Elements which = Elements::all) const;
  /// False for empty units.
  [[nodiscard]] bool is_frozen(UnitId unit) const { return units_[unit].is_frozen; }
  [[nodiscard]] base::IndexRange<ParameterId> parameters_of(UnitId unit) const {
    return units_[unit].parameters;
  }

  [[nodiscard]] std::int64_t num_shards() const { return num_shards_; }
  [[nodiscard]] ElementRange shard_range(UnitId unit, ShardId shard) const;
  /// The parameter's elements in one shard; empty if it has none there.
  [[nodiscard]] ElementRange range_in(ParameterId id, ShardId shard) const;

  /// The elements in order: one range per run of consecutive units that are all trained or all
  /// frozen.
  [[nodiscard]] std::vector<ElementRange> ranges(Elements which) const;
  /// The elements of one shard, in order: one range per unit or, with a single shard, as
  /// ranges(which).
  [[nodiscard]] std::vector<ElementRange> ranges(Elements which, ShardId shard) const;

 private:
  struct Parameter {
    ElementRange range;
    std::vector<std::int64_t> shape;
    UnitId unit;
    bool is_frozen = false;
  };
  struct Unit {
    ElementRange range;
    base::IndexRange<ParameterId> parameters;
    bool is_frozen = false;
  };

  void add_unit(const ParameterSpecs& specs, Unit unit);

  base::IndexedVector<ParameterId, Parameter> parameters_;
  base::IndexedVector<UnitId, Unit> units_;
  std::int64_t num_shards_;
  std::int64_t num_elements_ = 0;
};

/// Returns the size of `elements` elements in bytes.
[[nodiscard]] inline std::int64_t bytes_of(std::int64_t elements, at::ScalarType dtype) {
  return elements * static_cast<std::int64_t>(c10::elementSize(dtype));
}

/// Allocates zeroed, 64-byte aligned memory and returns it as a tensor (bytes) uint8.
using ArenaAllocator = std::function<at::Tensor(std::int64_t bytes)>;

/// An ArenaAllocator for process-private memory: for values that are never communicated.
[[nodiscard]] at::Tensor private_memory(std::int64_t bytes);

/// Each parameter in its storage shape.
using ParameterViews = base::IndexedVector<ParameterId, at::Tensor>;

/// One flat tensor that holds a whole layout, one shard of it, or the trained elements of either;
/// initially zero.
class Arena {
 public:
  Arena(const ArenaLayout& layout, at::ScalarType dtype, const ArenaAllocator& allocate);

  /// Holds the elements layout.ranges(Elements::all, shard), contiguously.
  [[nodiscard]] static Arena of_shard(const ArenaLayout& layout, ShardId shard,
                                      at::ScalarType dtype, const ArenaAllocator& allocate);
  /// Holds the elements layout.ranges(Elements::trained): for unsharded gradients.
  [[nodiscard]] static Arena of_trained(const ArenaLayout& layout, at::ScalarType dtype,
                                        const ArenaAllocator& allocate);
  /// Holds the elements layout.ranges(Elements::trained, shard): for a shard of gradients or
  /// optimizer state.
  [[nodiscard]] static Arena of_trained_shard(const ArenaLayout& layout, ShardId shard,
                                              at::ScalarType dtype, const ArenaAllocator& allocate);

  /// Returns the size of an arena, or of one shard, in bytes.
  [[nodiscard]] static std::int64_t bytes(const ArenaLayout& layout, at::ScalarType dtype) {
    return bytes_of(layout.num_elements(), dtype);
  }
  [[nodiscard]] static std::int64_t bytes_of_shard(const ArenaLayout& layout,
                                                   at::ScalarType dtype) {
    return bytes(layout, dtype) / layout.num_shards();
  }
  /// The same for the trained elements.
  [[nodiscard]] static std::int64_t bytes_of_trained(const ArenaLayout& layout,
                                                     at::ScalarType dtype) {
    return bytes_of(layout.num_trained(), dtype);
  }
  [[nodiscard]] static std::int64_t bytes_of_trained_shard(const ArenaLayout& layout,
                                                           at::ScalarType dtype) {
    return bytes_of_trained(layout, dtype) / layout.num_shards();
  }

  [[nodiscard]] const at::Tensor& flat() const { return flat_; }
  /// A contiguous view in the parameter's storage shape; undefined if the parameter is frozen and
  /// this arena holds trained ones only. Not for arenas that hold one of several shards.
  [[nodiscard]] const at::Tensor& view(ParameterId id) const { return views_[id]; }
  /// The views of all parameters, as view().
  [[nodiscard]] const ParameterViews& views() const { return views_; }
  /// True if the arena holds these elements of the layout contiguously.
  [[nodiscard]] bool holds(ElementRange range) const { return find(range).has_value(); }
  /// Returns a view (range.size()) of layout elements; REQUIRES: holds(range).
  [[nodiscard]] at::Tensor slice(ElementRange range) const;

 private:
  Arena(std::vector<ElementRange> parts, at::ScalarType dtype, const ArenaAllocator& allocate);

  void make_views(const ArenaLayout& layout);
  [[nodiscard]] std::optional<std::int64_t> find(ElementRange range) const;

  std::vector<ElementRange> parts_;  // ranges of the layout, in memory order
  at::Tensor flat_;
  ParameterViews views_;  // empty for a shard
};

}  // namespace dtrain::param
