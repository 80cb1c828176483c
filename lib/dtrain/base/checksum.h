// The checksum of checkpoints and of training data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct XXH3_state_s;

namespace dtrain::base {

/// XXH3, 64 bits, of bytes that come in pieces: it finds damage, it does not stop a forger.
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

}  // namespace dtrain::base
