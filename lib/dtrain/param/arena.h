// Flat storage: all parameters of a rank, or their gradients or moments, in one tensor with a view
// for each.
#pragma once

#include <ATen/core/Tensor.h>

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
};

/// Where each parameter lies in every arena of a rank. Padding between parameters stays zero.
class ArenaLayout {
 public:
  explicit ArenaLayout(std::span<const ParameterSpec> specs);

  [[nodiscard]] std::int64_t num_parameters() const {
    return static_cast<std::int64_t>(ranges_.size());
  }
  [[nodiscard]] std::int64_t num_elements() const { return num_elements_; }  ///< padding included
  /// The elements of the parameter itself, without padding.
  [[nodiscard]] ElementRange range(ParameterId id) const;
  [[nodiscard]] at::IntArrayRef shape(ParameterId id) const;

 private:
  std::vector<ElementRange> ranges_;
  std::vector<std::vector<std::int64_t>> shapes_;
  std::int64_t num_elements_ = 0;
};

/// Gives `bytes` bytes of zeroed, 64-byte aligned memory as a tensor (bytes) uint8.
using ArenaAllocator = std::function<at::Tensor(std::int64_t bytes)>;

/// One flat tensor in a layout, zero at first.
class Arena {
 public:
  Arena(const ArenaLayout& layout, at::ScalarType dtype, const ArenaAllocator& allocate);

  [[nodiscard]] const at::Tensor& flat() const { return flat_; }  ///< (num_elements)
  /// A contiguous view in the parameter's storage shape.
  [[nodiscard]] const at::Tensor& view(ParameterId id) const;
  /// (range.size()) elements of the flat tensor.
  [[nodiscard]] at::Tensor slice(ElementRange range) const;

 private:
  at::Tensor flat_;
  std::vector<at::Tensor> views_;
};

}  // namespace dtrain::param
