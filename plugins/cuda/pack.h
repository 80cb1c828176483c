// Neighbouring values that a thread moves at once.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "dtrain/base/device_function.h"

namespace dtrain::cuda {

/// Values of a pack: 16 bytes, but no more than eight values.
template <typename T>
inline constexpr int kPack = sizeof(T) == 1 ? 8 : 16 / sizeof(T);

template <typename T, int n = kPack<T>>
struct alignas(n * sizeof(T)) Pack {
  T values[n];
};

/// The bits of a pack, which nvcc stores at once. It splits some stores of a struct whose values are
/// also stored one by one.
template <typename T, int n>
struct [[gnu::may_alias]] PackBits {
  std::conditional_t<n * sizeof(T) == 16, unsigned __int128,
                     std::conditional_t<n * sizeof(T) == 8, std::uint64_t, std::uint32_t>>
      bits;
};

/// Packs of n values that hold `count` values.
[[nodiscard]] DTRAIN_DEVICE_FUNCTION constexpr std::int64_t packs_of(int n, std::int64_t count) {
  return (count + n - 1) / n;
}

/// Whether the pack at this address is moved at once: all its values exist, and the address is a
/// multiple of its size.
template <int n, typename T>
[[nodiscard]] DTRAIN_DEVICE_FUNCTION bool is_whole(const T* at, std::int64_t left,
                                                   std::int64_t skipped) {
  return skipped <= 0 && left >= n &&
         reinterpret_cast<std::uintptr_t>(at) % sizeof(Pack<T, n>) == 0;
}

/// The pack at any address. Values i with skipped <= i < left are read, the others are zero.
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

/// Writes the values that load reads.
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
