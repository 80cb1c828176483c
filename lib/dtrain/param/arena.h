// Flat storage: all parameters of a rank, or their gradients or moments, in one tensor with a view
// for each.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <functional>
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
[[nodiscard]] inline ElementRange common(ElementRange a, ElementRange b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

/// Consecutive parameters of a rank that are gathered, freed and reduced at once.
using UnitId = base::Index<struct UnitTag>;
/// One of the equal parts that every unit is cut into.
using ShardId = base::Index<struct ShardTag>;

/// How parameters are grouped and cut.
struct LayoutOptions {
  /// Each unit's first parameter, ascending from 0.
  base::IndexedVector<UnitId, ParameterId> unit_begins = {ParameterId(0)};
  std::int64_t num_shards = 1;
};

/// The place of each parameter in every arena of a job. A unit is padded so that it can be cut into
/// equal shards. Padding stays zero in every arena.
class ArenaLayout {
 public:
  explicit ArenaLayout(const ParameterSpecs& specs, const LayoutOptions& options = {});

  [[nodiscard]] std::int64_t num_parameters() const { return parameters_.size(); }
  [[nodiscard]] base::IndexRange<ParameterId> parameters() const { return parameters_.ids(); }
  [[nodiscard]] std::int64_t num_elements() const { return num_elements_; }  ///< padding included
  /// The elements of the parameter itself, without padding.
  [[nodiscard]] ElementRange range(ParameterId id) const { return parameters_[id].range; }
  [[nodiscard]] at::IntArrayRef shape(ParameterId id) const { return parameters_[id].shape; }

  [[nodiscard]] std::int64_t num_units() const { return units_.size(); }
  [[nodiscard]] base::IndexRange<UnitId> units() const { return units_.ids(); }
  [[nodiscard]] UnitId unit_of(ParameterId id) const { return parameters_[id].unit; }
  /// Padding included.
  [[nodiscard]] ElementRange unit_range(UnitId unit) const { return units_[unit].range; }
  /// Returns the elements of the largest unit, padding included.
  [[nodiscard]] std::int64_t largest_unit() const;
  [[nodiscard]] base::IndexRange<ParameterId> parameters_of(UnitId unit) const {
    return units_[unit].parameters;
  }

  [[nodiscard]] std::int64_t num_shards() const { return num_shards_; }
  [[nodiscard]] ElementRange shard_range(UnitId unit, ShardId shard) const;
  /// The parameter's elements in one shard; empty where it has none.
  [[nodiscard]] ElementRange range_in(ParameterId id, ShardId shard) const;
  /// All elements of one shard, in order: a range a unit, or everything where nothing is cut.
  [[nodiscard]] std::vector<ElementRange> owned_by(ShardId shard) const;

 private:
  struct Parameter {
    ElementRange range;
    std::vector<std::int64_t> shape;
    UnitId unit;
  };
  struct Unit {
    ElementRange range;
    base::IndexRange<ParameterId> parameters;
  };

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

/// One flat tensor that holds a layout, or one shard of it; zero at first.
class Arena {
 public:
  Arena(const ArenaLayout& layout, at::ScalarType dtype, const ArenaAllocator& allocate);

  /// The elements layout.owned_by(shard) alone, one after the other.
  [[nodiscard]] static Arena of_shard(const ArenaLayout& layout, ShardId shard,
                                      at::ScalarType dtype, const ArenaAllocator& allocate);

  /// Returns the bytes of an arena, or of one shard of it.
  [[nodiscard]] static std::int64_t bytes(const ArenaLayout& layout, at::ScalarType dtype) {
    return bytes_of(layout.num_elements(), dtype);
  }
  [[nodiscard]] static std::int64_t bytes_of_shard(const ArenaLayout& layout,
                                                   at::ScalarType dtype) {
    return bytes(layout, dtype) / layout.num_shards();
  }

  [[nodiscard]] const at::Tensor& flat() const { return flat_; }
  /// A contiguous view in the parameter's storage shape; of an arena that holds the whole layout.
  [[nodiscard]] const at::Tensor& view(ParameterId id) const { return views_[id]; }
  /// (range.size()) elements of the layout, which this arena must hold in one piece.
  [[nodiscard]] at::Tensor slice(ElementRange range) const;
  /// Where those elements begin in flat().
  [[nodiscard]] std::int64_t position_of(ElementRange range) const;

 private:
  Arena(std::vector<ElementRange> parts, at::ScalarType dtype, const ArenaAllocator& allocate);

  std::vector<ElementRange> parts_;  // of the layout, in the order in which they lie here
  at::Tensor flat_;
  ParameterViews views_;  // empty unless the whole layout is here
};

}  // namespace dtrain::param
