// Flat storage: all parameters of a rank, or their gradients or moments, in one tensor with a view
// for each.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
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

/// How parameters are grouped and cut.
struct LayoutOptions {
  std::vector<ParameterId> unit_begins = {0};  ///< each unit's first parameter, ascending from 0
  std::int64_t num_shards = 1;                 ///< equal parts of every unit
};

/// The place of each parameter in every arena of a job. Consecutive parameters form units, the
/// parts of a model that are gathered, freed and reduced at once; a unit is padded so that it can
/// be cut into equal shards. Padding stays zero in every arena.
class ArenaLayout {
 public:
  explicit ArenaLayout(std::span<const ParameterSpec> specs, const LayoutOptions& options = {});

  [[nodiscard]] std::int64_t num_parameters() const {
    return static_cast<std::int64_t>(ranges_.size());
  }
  [[nodiscard]] std::int64_t num_elements() const { return num_elements_; }  ///< padding included
  /// The elements of the parameter itself, without padding.
  [[nodiscard]] ElementRange range(ParameterId id) const;
  [[nodiscard]] at::IntArrayRef shape(ParameterId id) const;

  [[nodiscard]] std::int64_t num_units() const { return static_cast<std::int64_t>(units_.size()); }
  [[nodiscard]] std::int64_t unit_of(ParameterId id) const;
  /// Padding included.
  [[nodiscard]] ElementRange unit_range(std::int64_t unit) const;
  /// Returns the elements of the largest unit, padding included.
  [[nodiscard]] std::int64_t largest_unit() const;
  /// The unit's parameters, consecutive.
  [[nodiscard]] std::span<const ParameterId> parameters_of(std::int64_t unit) const;

  [[nodiscard]] std::int64_t num_shards() const { return num_shards_; }
  [[nodiscard]] ElementRange shard_range(std::int64_t unit, std::int64_t shard) const;
  /// The parameter's elements in one shard; empty where it has none.
  [[nodiscard]] ElementRange range_in(ParameterId id, std::int64_t shard) const;
  /// All elements of one shard, in order: a range a unit, or everything where nothing is cut.
  [[nodiscard]] std::vector<ElementRange> owned_by(std::int64_t shard) const;

 private:
  struct Unit {
    ElementRange range;
    std::vector<ParameterId> parameters;
  };

  std::vector<ElementRange> ranges_;               // by parameter
  std::vector<std::vector<std::int64_t>> shapes_;  // by parameter
  std::vector<std::int64_t> units_of_;             // by parameter
  std::vector<Unit> units_;
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

/// One flat tensor that holds a layout, or one shard of it; zero at first.
class Arena {
 public:
  Arena(const ArenaLayout& layout, at::ScalarType dtype, const ArenaAllocator& allocate);

  /// The elements layout.owned_by(shard) alone, one after the other.
  [[nodiscard]] static Arena of_shard(const ArenaLayout& layout, std::int64_t shard,
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
  [[nodiscard]] const at::Tensor& view(ParameterId id) const;
  /// (range.size()) elements of the layout, which this arena must hold in one piece.
  [[nodiscard]] at::Tensor slice(ElementRange range) const;
  /// Where those elements begin in flat().
  [[nodiscard]] std::int64_t position_of(ElementRange range) const;

 private:
  Arena(std::vector<ElementRange> parts, at::ScalarType dtype, const ArenaAllocator& allocate);

  std::vector<ElementRange> parts_;  // of the layout, in the order in which they lie here
  at::Tensor flat_;
  std::vector<at::Tensor> views_;  // empty unless the whole layout is here
};

}  // namespace dtrain::param
