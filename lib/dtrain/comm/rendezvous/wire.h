// Encodes numbers and texts as bytes of a message between ranks. Private to comm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace dtrain::comm {

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

/// Requests of a rank to the store that rank 0 serves.
enum class StoreRequest : std::uint8_t { set = 1, get = 2, check = 3, refuse = 4, leave = 5 };

/// How it answers. refused: the job cannot start, with the kind of error and its text.
/// `unknown`: the answer to a rank that does not prove that it knows the job's secret.
enum class StoreReply : std::uint8_t { done = 1, absent = 2, refused = 3, unknown = 4 };

/// The first bytes that the store sends.
inline constexpr std::string_view kStoreGreeting = "dtrain/1";

/// How the two ends of a connection know each other; the store says it after its greeting.
enum class Trust : std::uint8_t {
  handed_down = 1,  ///< the connection came through a socket that dtrun made
  same_user = 2,    ///< TCP within one machine: the kernel says whose the sockets are
  token = 3,        ///< both prove that they know the job's secret
};

/// The longest message, and the longest from a sender who has not proved to be a rank.
inline constexpr std::uint64_t kMostMessageBytes = std::uint64_t{16} << 20;
inline constexpr std::uint64_t kMostHelloBytes = 256;

}  // namespace dtrain::comm
