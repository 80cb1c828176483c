// Division by a number that the host knows, which GPUs have no instruction for.
#pragma once

#include <cstdint>

#include "dtrain/base/device_function.h"

namespace dtrain::cuda {

/// Divides by multiplying and shifting.
///
/// Source: Granlund, Montgomery, Division by Invariant Integers using Multiplication (PLDI 1994).
class Divider {
 public:
  struct Result {
    std::uint32_t quotient;
    std::uint32_t remainder;
  };

  /// divisor: 1 to 2^32 - 1.
  explicit Divider(std::int64_t divisor)
      : divisor_(static_cast<std::uint32_t>(divisor)),
        shift_(bits_of(divisor_ - 1)),
        factor_(static_cast<std::uint32_t>(
            (((std::uint64_t{1} << shift_) - divisor_) << 32) / divisor_ + 1)) {}

  /// number: 0 to 2^32 - 1.
  [[nodiscard]] DTRAIN_DEVICE_FUNCTION Result operator()(std::int64_t number) const {
    const auto low = static_cast<std::uint32_t>(number);
    const std::uint64_t high = std::uint64_t{low} * factor_ >> 32;
    const auto quotient = static_cast<std::uint32_t>((high + low) >> shift_);
    return {quotient, low - quotient * divisor_};
  }
  [[nodiscard]] DTRAIN_DEVICE_FUNCTION std::int64_t divisor() const { return divisor_; }

 private:
  static std::uint32_t bits_of(std::uint32_t number) {
    std::uint32_t bits = 0;
    for (; number != 0; number >>= 1) ++bits;
    return bits;
  }

  std::uint32_t divisor_;
  std::uint32_t shift_;
  std::uint32_t factor_;
};

}  // namespace dtrain::cuda
