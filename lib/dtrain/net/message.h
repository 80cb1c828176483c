// Encodes numbers and texts as bytes of a message between processes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dtrain::net {

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
