// Checksums of checkpoints and training data, and a hash that, unlike std::hash, is the same on
// every machine and build.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct XXH3_state_s;

namespace dtrain::base {

/// Streaming 64-bit XXH3 checksum. Detects corruption, not forgery.
///
/// Source: the xxHash library.
class Checksum {
 public:
  Checksum();
  void add(std::span<const std::byte> bytes);
  [[nodiscard]] std::uint64_t value() const;

 private:
  struct Deleter {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Deleter> state_;
};

[[nodiscard]] std::uint64_t checksum_of(std::span<const std::byte> bytes);
[[nodiscard]] std::uint64_t checksum_of(std::string_view text);

/// Sixteen hexadecimal digits, as `xxhsum -H3` prints them.
[[nodiscard]] std::string checksum_text(std::uint64_t value);

inline constexpr std::uint64_t kHashStart = 0xCBF29CE484222325;

/// 64-bit FNV-1a, continued from `hash`. Detects accidental changes, not forgery.
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
