// Vectorized loads and stores: a pack holds adjacent values that a thread moves in one instruction.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "dtrain/base/device_function.h"

namespace dtrain::cuda {

/// Values per pack: 16 bytes, but at most eight values.
template <typename T>
inline constexpr int kPack = sizeof(T) == 1 ? 8 : 16 / sizeof(T);

template <typename T, int n = kPack<T>>
struct alignas(n * sizeof(T)) Pack {
  T values[n];
};

/// The bits of a pack as one integer. nvcc stores it in one instruction, whereas it splits some
/// stores of a struct whose values are also stored one by one.
template <typename T, int n>
struct [[gnu::may_alias]] PackBits {
  std::conditional_t<n * sizeof(T) == 16, unsigned __int128,
                     std::conditional_t<n * sizeof(T) == 8, std::uint64_t, std::uint32_t>>
      bits;
};

/// Returns the number of packs of n values that `count` values need.
[[nodiscard]] DTRAIN_DEVICE_FUNCTION constexpr std::int64_t packs_of(int n, std::int64_t count) {
  return (count + n - 1) / n;
}

/// True if the pack at this address can be moved in one instruction: it is complete and aligned to
/// its size.
template <int n, typename T>
[[nodiscard]] DTRAIN_DEVICE_FUNCTION bool is_whole(const T* at, std::int64_t left,
                                                   std::int64_t skipped) {
  return skipped <= 0 && left >= n &&
         reinterpret_cast<std::uintptr_t>(at) % sizeof(Pack<T, n>) == 0;
}

/// Loads a pack from any address. Values i with skipped <= i < left are read, the others are zero.
template <typename T, int n = kPack<T>>
[[nodiscard]] DTRAIN_DEVICE_FUNCTION Pack<T, n> load(const T* from, std::int64_t left,
                                                     std::int64_t skipped = 0) {
  if (is_whole<n>(from, left, skipped)) return *reinterpret_cast<const Pack<T, n>*>(from);
  Pack<T, n> pack{};
  for (int i = 0; i < n; ++i) {
    if (skipped <= i && i < left) pack.values[i] = from[i];
  }
  return pack;
}

/// Stores the values that load would read.
template <typename T, int n>
DTRAIN_DEVICE_FUNCTION void store(const Pack<T, n>& pack, T* to, std::int64_t left,
                                  std::int64_t skipped = 0) {
  if (is_whole<n>(to, left, skipped)) {
    *reinterpret_cast<PackBits<T, n>*>(to) = std::bit_cast<PackBits<T, n>>(pack);
    return;
  }
  for (int i = 0; i < n; ++i) {
    if (skipped <= i && i < left) to[i] = pack.values[i];
  }
}

}  // namespace dtrain::cuda
