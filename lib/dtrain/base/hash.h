// A hash that is the same on every machine and build, which std::hash does not promise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace dtrain::base {

inline constexpr std::uint64_t kHashStart = 0xCBF29CE484222325;

/// FNV-1a, 64 bits, going on from `hash`. It notices accidents, not forgeries.
[[nodiscard]] inline std::uint64_t hash_bytes(std::span<const std::byte> bytes,
                                              std::uint64_t hash = kHashStart) {
  for (const std::byte byte : bytes) {
    hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001B3;
  }
  return hash;
}

[[nodiscard]] inline std::uint64_t hash_text(std::string_view text) {
  return hash_bytes(std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace dtrain::base
