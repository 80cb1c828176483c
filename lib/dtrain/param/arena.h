// Flat storage: all parameters of a rank, or their gradients or moments, in one tensor with a view
// for each.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "dtrain/param/parameter_spec.h"

namespace dtrain::param {

/// Tensors start at multiples of this many elements, so that shards can be cut there and every view
/// is aligned.
inline constexpr std::int64_t kArenaAlignment = 64;

/// Elements [begin, end) of an arena.
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  [[nodiscard]] std::int64_t size() const { return end - begin; }
  [[nodiscard]] bool is_empty() const { return end <= begin; }
  bool operator==(const ElementRange&) const = default;
};

/// Returns the elements that two ranges share; empty if none.
[[nodiscard]] inline ElementRange intersection(ElementRange a, ElementRange b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

/// Consecutive parameters of a rank that are gathered, freed and reduced at once. Either all of
/// them are trained, or all are frozen.
using UnitId = base::Index<struct UnitTag>;
/// One of the equal parts that every unit is cut into.
using ShardId = base::Index<struct ShardTag>;

/// How parameters are grouped and cut.
struct LayoutOptions {
  /// Each unit's first parameter, ascending from 0.
  base::IndexedVector<UnitId, ParameterId> unit_begins = {ParameterId(0)};
  std::int64_t num_shards = 1;
  /// Never updated: without gradients and optimizer state. Units that hold some of these and others
  /// are cut between them.
  std::vector<ParameterId> frozen = {};
};

/// The place of each parameter in every arena of a job. A unit is padded so that it can be cut into
/// equal shards. Padding stays zero in every arena. Arenas of gradients and optimizer state hold
/// the trained units alone; an element keeps its place in the layout there.
class ArenaLayout {
 public:
  explicit ArenaLayout(const ParameterSpecs& specs, const LayoutOptions& options = {});

  [[nodiscard]] std::int64_t num_parameters() const { return parameters_.size(); }
  [[nodiscard]] base::IndexRange<ParameterId> parameters() const { return parameters_.ids(); }
  [[nodiscard]] std::int64_t num_elements() const { return num_elements_; }  ///< padding included
  /// The elements of the parameter itself, without padding.
  [[nodiscard]] ElementRange range(ParameterId id) const { return parameters_[id].range; }
  [[nodiscard]] at::IntArrayRef shape(ParameterId id) const { return parameters_[id].shape; }
  [[nodiscard]] bool is_frozen(ParameterId id) const { return parameters_[id].is_frozen; }

  [[nodiscard]] std::int64_t num_units() const { return units_.size(); }
  [[nodiscard]] base::IndexRange<UnitId> units() const { return units_.ids(); }
  [[nodiscard]] UnitId unit_of(ParameterId id) const { return parameters_[id].unit; }
  /// Padding included.
  [[nodiscard]] ElementRange unit_range(UnitId unit) const { return units_[unit].range; }
  /// Returns the elements of the largest unit, padding included.
  [[nodiscard]] std::int64_t largest_unit() const;
  /// Empty units are not.
  [[nodiscard]] bool is_frozen(UnitId unit) const { return units_[unit].is_frozen; }
  [[nodiscard]] base::IndexRange<ParameterId> parameters_of(UnitId unit) const {
    return units_[unit].parameters;
  }

  [[nodiscard]] std::int64_t num_shards() const { return num_shards_; }
  [[nodiscard]] ElementRange shard_range(UnitId unit, ShardId shard) const;
  /// The parameter's elements in one shard; empty where it has none.
  [[nodiscard]] ElementRange range_in(ParameterId id, ShardId shard) const;
  /// All elements of one shard, in order: a range for each unit, or, with a single shard, for each
  /// run of units that are trained or frozen alike.
  [[nodiscard]] std::vector<ElementRange> owned_by(ShardId shard) const {
    return ranges_of(shard, /*frozen_too=*/true);
  }

  /// Returns the elements of all trained units, padding included.
  [[nodiscard]] std::int64_t num_trained() const;
  [[nodiscard]] std::int64_t largest_trained_unit() const;
  /// The elements of all trained units, in order: a range for each run of them.
  [[nodiscard]] std::vector<ElementRange> trained() const { return runs(/*frozen_too=*/false); }
  /// Those ranges of owned_by(shard) that are trained.
  [[nodiscard]] std::vector<ElementRange> trained_by(ShardId shard) const {
    return ranges_of(shard, /*frozen_too=*/false);
  }

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
  [[nodiscard]] std::vector<ElementRange> runs(bool frozen_too) const;
  [[nodiscard]] std::vector<ElementRange> ranges_of(ShardId shard, bool frozen_too) const;

  base::IndexedVector<ParameterId, Parameter> parameters_;
  base::IndexedVector<UnitId, Unit> units_;
  std::int64_t num_shards_;
  std::int64_t num_elements_ = 0;
};

/// Returns the bytes of so many elements.
[[nodiscard]] inline std::int64_t bytes_of(std::int64_t elements, at::ScalarType dtype) {
  return elements * static_cast<std::int64_t>(c10::elementSize(dtype));
}

/// Gives `bytes` bytes of zeroed, 64-byte aligned memory as a tensor (bytes) uint8.
using ArenaAllocator = std::function<at::Tensor(std::int64_t bytes)>;

/// An ArenaAllocator of this process's own memory, for values that are never communicated.
[[nodiscard]] at::Tensor private_memory(std::int64_t bytes);

/// Each parameter in its storage shape.
using ParameterViews = base::IndexedVector<ParameterId, at::Tensor>;

/// One flat tensor that holds a layout, one shard of it, or what is trained of either; zero at
/// first.
class Arena {
 public:
  Arena(const ArenaLayout& layout, at::ScalarType dtype, const ArenaAllocator& allocate);

  /// The elements layout.owned_by(shard) alone, one after the other.
  [[nodiscard]] static Arena of_shard(const ArenaLayout& layout, ShardId shard,
                                      at::ScalarType dtype, const ArenaAllocator& allocate);
  /// The elements layout.trained() alone: gradients in full.
  [[nodiscard]] static Arena of_trained(const ArenaLayout& layout, at::ScalarType dtype,
                                        const ArenaAllocator& allocate);
  /// The elements layout.trained_by(shard) alone: a shard of gradients or of optimizer state.
  [[nodiscard]] static Arena of_trained_shard(const ArenaLayout& layout, ShardId shard,
                                              at::ScalarType dtype, const ArenaAllocator& allocate);

  /// Returns the bytes of an arena, or of one shard of it.
  [[nodiscard]] static std::int64_t bytes(const ArenaLayout& layout, at::ScalarType dtype) {
    return bytes_of(layout.num_elements(), dtype);
  }
  [[nodiscard]] static std::int64_t bytes_of_shard(const ArenaLayout& layout,
                                                   at::ScalarType dtype) {
    return bytes(layout, dtype) / layout.num_shards();
  }
  /// The same of what is trained.
  [[nodiscard]] static std::int64_t bytes_of_trained(const ArenaLayout& layout,
                                                     at::ScalarType dtype) {
    return bytes_of(layout.num_trained(), dtype);
  }
  [[nodiscard]] static std::int64_t bytes_of_trained_shard(const ArenaLayout& layout,
                                                           at::ScalarType dtype) {
    return bytes_of_trained(layout, dtype) / layout.num_shards();
  }

  [[nodiscard]] const at::Tensor& flat() const { return flat_; }
  /// A contiguous view in the parameter's storage shape, of an arena that is no shard; undefined if
  /// the arena does not hold the parameter, which is frozen.
  [[nodiscard]] const at::Tensor& view(ParameterId id) const { return views_[id]; }
  /// True if these elements of the layout are here, in one piece.
  [[nodiscard]] bool holds(ElementRange range) const { return find(range).has_value(); }
  /// (range.size()) elements of the layout, which this arena must hold in one piece.
  [[nodiscard]] at::Tensor slice(ElementRange range) const;

 private:
  Arena(std::vector<ElementRange> parts, at::ScalarType dtype, const ArenaAllocator& allocate);

  void make_views(const ArenaLayout& layout);
  [[nodiscard]] std::optional<std::int64_t> find(ElementRange range) const;

  std::vector<ElementRange> parts_;  // of the layout, in the order in which they lie here
  at::Tensor flat_;
  ParameterViews views_;  // empty in a shard
};

}  // namespace dtrain::param
