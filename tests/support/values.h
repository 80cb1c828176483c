// Fills test tensors reproducibly, computes their expected sums, and compares tensors.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

namespace dtrain::testing {

/// Throws unless `holds`. For use inside ranks: Catch's assertions support only one thread.
inline void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("expected: " + what);
}

/// Numbers of both signs and many magnitudes, different for every (rank, index); their sums depend
/// on the order of addition.
inline at::Tensor values_of(std::int64_t rank, std::int64_t count, at::ScalarType dtype) {
  const auto result = at::empty({count}, at::kDouble);
  double* values = result.data_ptr<double>();
  for (std::int64_t i = 0; i < count; ++i) {
    auto mixed = static_cast<std::uint64_t>(i * 64 + rank + 1) * 0x9E3779B97F4A7C15u;
    mixed = (mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9u;
    const auto bits = static_cast<std::int64_t>(mixed >> 32);
    const double limit = dtype == at::kHalf ? 64 : 1;  // float16 ends at 65,504
    values[i] = at::isIntegralType(dtype, false) ? static_cast<double>(bits % 23)
                                                 : (static_cast<double>(bits % 2'000'003) - 1e6) /
                                                       static_cast<double>(bits % 97 + 3) / limit;
  }
  return result.to(dtype);
}

/// The sum of values_of(first .. first + ranks - 1) in `dtype`, added in `wide`.
inline at::Tensor wide_tree_sum(std::int64_t first, std::int64_t ranks, std::int64_t count,
                                at::ScalarType dtype, at::ScalarType wide) {
  if (ranks % 2 == 0) {
    return wide_tree_sum(first, ranks / 2, count, dtype, wide) +
           wide_tree_sum(first + ranks / 2, ranks / 2, count, dtype, wide);
  }
  auto sum = values_of(first, count, dtype).to(wide);
  for (std::int64_t rank = first + 1; rank < first + ranks; ++rank) {
    sum = sum + values_of(rank, count, dtype).to(wide);
  }
  return sum;
}

/// The sum of values_of(first .. first + ranks - 1) in the order of comm/tree_order.h, implemented
/// independently: an even number of ranks by halves, an odd number from left to right. Adds 16-bit
/// dtypes in float32.
inline at::Tensor tree_sum(std::int64_t first, std::int64_t ranks, std::int64_t count,
                           at::ScalarType dtype) {
  const bool is_low = dtype == at::kBFloat16 || dtype == at::kHalf;
  return wide_tree_sum(first, ranks, count, dtype, is_low ? at::kFloat : dtype).to(dtype);
}

/// Compares bytes: unlike at::equal, it distinguishes -0 from 0 and treats equal NaNs as equal.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == b.numel() && a.scalar_type() == b.scalar_type() &&
         (a.numel() == 0 ||
          at::equal(a.flatten().view(at::kByte), b.flatten().view(at::kByte)));  // of scalars, too
}

/// Returns error / expected. Returns NaN, which is within no bound, if only zeros are expected, so
/// that no test passes because its reference is zero by mistake.
inline double share_of(const at::Tensor& error, const at::Tensor& expected) {
  if (expected.item<double>() == 0) return std::numeric_limits<double>::quiet_NaN();
  return (error / expected).item<double>();
}

/// Returns the largest difference divided by the largest expected value; NaN as share_of().
inline double largest_error(const at::Tensor& found, const at::Tensor& expected) {
  const at::Tensor reference = expected.to(at::kDouble);
  return share_of((found.to(at::kDouble) - reference).abs().max(), reference.abs().max());
}

/// Returns the L2 norm of the difference divided by the expected L2 norm; NaN as share_of(). Use it
/// where rounding may switch a neuron on, which changes single values by any amount.
inline double length_error(const at::Tensor& found, const at::Tensor& expected) {
  const at::Tensor reference = expected.to(at::kDouble);
  return share_of((found.to(at::kDouble) - reference).norm(), reference.norm());
}

/// Sets LibTorch's number of threads during its lifetime.
class Threads {
 public:
  explicit Threads(int count) : before_(at::get_num_threads()) { at::set_num_threads(count); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  ~Threads() { at::set_num_threads(before_); }

 private:
  int before_;
};

}  // namespace dtrain::testing
