// Fills test tensors reproducibly, and gives the sums they should have.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

namespace dtrain::testing {

/// For use inside ranks, where Catch's assertions are not to be called (they know one thread).
inline void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("expected: " + what);
}

/// Numbers of both signs and many sizes, different for every (rank, index): sums of them depend on
/// the order of addition.
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

/// The sum of values_of(first .. first + ranks - 1) by halves, an odd number left to right: the
/// order of comm/tree_order.h, written from its description. Types of 16 bits are added in float32.
inline at::Tensor tree_sum(std::int64_t first, std::int64_t ranks, std::int64_t count,
                           at::ScalarType dtype) {
  const bool is_low = dtype == at::kBFloat16 || dtype == at::kHalf;
  return wide_tree_sum(first, ranks, count, dtype, is_low ? at::kFloat : dtype).to(dtype);
}

/// Compares bytes: unlike at::equal it tells -0 from 0 and takes NaNs for equal.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == b.numel() && a.scalar_type() == b.scalar_type() &&
         (a.numel() == 0 ||
          at::equal(a.flatten().view(at::kByte), b.flatten().view(at::kByte)));  // of scalars, too
}

/// error / expected; NaN, which is within no bound, where nothing but zeros is expected: a reference
/// that is zero by mistake must not let a test pass.
inline double share_of(const at::Tensor& error, const at::Tensor& expected) {
  if (expected.item<double>() == 0) return std::numeric_limits<double>::quiet_NaN();
  return (error / expected).item<double>();
}

/// Largest difference over the largest expected value; NaN as share_of().
inline double largest_error(const at::Tensor& found, const at::Tensor& expected) {
  const at::Tensor reference = expected.to(at::kDouble);
  return share_of((found.to(at::kDouble) - reference).abs().max(), reference.abs().max());
}

/// Length of the difference over the expected length: a neuron that rounding switches on changes
/// single values by any amount. NaN as share_of().
inline double length_error(const at::Tensor& found, const at::Tensor& expected) {
  const at::Tensor reference = expected.to(at::kDouble);
  return share_of((found.to(at::kDouble) - reference).norm(), reference.norm());
}

/// So many threads of LibTorch while it lives.
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
