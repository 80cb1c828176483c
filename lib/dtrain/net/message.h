// Encodes numbers and texts as bytes of a message between processes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dtrain::net {

/// The bit of a small number's byte that others follow.
inline constexpr std::uint64_t kMoreFollow = 1 << 7;

/// Builds a message: little-endian numbers, and texts that follow their length.
class MessageWriter {
 public:
  MessageWriter& number(std::uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) bytes_.push_back(static_cast<char>(value >> (8 * byte)));
    return *this;
  }
  MessageWriter& text(std::string_view value) {
    number(value.size());
    bytes_ += value;
    return *this;
  }
  /// A number that is mostly small: a byte for each 7 bits.
  MessageWriter& small_number(std::uint64_t value) {
    for (; value >= kMoreFollow; value >>= 7) {
      bytes_.push_back(static_cast<char>(value | kMoreFollow));
    }
    bytes_.push_back(static_cast<char>(value));
    return *this;
  }
  /// A text that is mostly short.
  MessageWriter& short_text(std::string_view value) {
    small_number(value.size());
    bytes_ += value;
    return *this;
  }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

/// Takes a message apart that anybody may have written: after a first wrong size all is empty or
/// zero, and is_whole() is false.
class MessageReader {
 public:
  explicit MessageReader(std::string_view bytes) : rest_(bytes) {}

  [[nodiscard]] std::uint64_t number() {
    const std::string_view bytes = take(8);
    std::uint64_t value = 0;
    for (std::size_t byte = 0; byte < bytes.size(); ++byte) {
      value |= std::uint64_t{static_cast<unsigned char>(bytes[byte])} << (8 * byte);
    }
    return value;
  }
  [[nodiscard]] std::string text() { return std::string(take(number())); }
  [[nodiscard]] std::uint64_t small_number() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const std::string_view next = take(1);
      if (next.empty()) return 0;
      const std::uint64_t byte = static_cast<unsigned char>(next.front());
      value |= (byte & ~kMoreFollow) << shift;
      if ((byte & kMoreFollow) == 0) return value;
    }
    is_good_ = false;
    return 0;
  }
  [[nodiscard]] std::string short_text() { return std::string(take(small_number())); }
  [[nodiscard]] bool is_good() const { return is_good_; }
  /// Returns whether every read found what it wanted, and nothing is left.
  [[nodiscard]] bool is_whole() const { return is_good_ && rest_.empty(); }

 private:
  std::string_view take(std::uint64_t size) {
    is_good_ = is_good_ && size <= rest_.size();
    if (!is_good_) return {};
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  std::string_view rest_;
  bool is_good_ = true;
};

}  // namespace dtrain::net
