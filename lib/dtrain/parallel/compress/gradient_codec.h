// The encoding in which gradients are sent between ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace dtrain::parallel {

/// Encodes gradients element by element, so that any range of them travels alone and sums of
/// encoded gradients, which ranks add in tree order, decode to the gradients' sum.
///
/// Threads: any.
class GradientCodec {
 public:
  virtual ~GradientCodec() = default;

  /// Returns the dtype of encoded gradients.
  [[nodiscard]] virtual at::ScalarType dtype() const = 0;
  /// True where gradients held in `held` travel in memory of their own.
  [[nodiscard]] virtual bool copies(at::ScalarType held) const = 0;
  /// gradients (n) -> (n) in dtype(); where nothing is copied they are the gradients themselves.
  [[nodiscard]] virtual at::Tensor encode(const at::Tensor& gradients) const = 0;
  /// Writes what a sum (n) of encoded gradients stands for to `gradients` (n); called where
  /// copies() alone.
  virtual void decode(const at::Tensor& sum, const at::Tensor& gradients) const = 0;

  /// Returns the bytes that `elements` gradients held in `held` take on top while they travel.
  [[nodiscard]] std::int64_t bytes(std::int64_t elements, at::ScalarType held) const {
    return copies(held) ? sent_bytes(elements) : 0;
  }
  /// Returns the bytes of `elements` encoded gradients.
  [[nodiscard]] std::int64_t sent_bytes(std::int64_t elements) const {
    return elements * static_cast<std::int64_t>(c10::elementSize(dtype()));
  }
};

/// Rounds to `dtype`; gradients that are held in it travel where they lie.
[[nodiscard]] std::shared_ptr<const GradientCodec> travel_in(at::ScalarType dtype);

}  // namespace dtrain::parallel
