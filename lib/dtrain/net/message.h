// Messages between processes: encodes numbers and texts as their bytes, and frames them over a
// stream socket, where each follows its length.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/base/clock.h"
#include "dtrain/base/io/descriptor.h"

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

/// The longest message from an end that has not proved who it is.
inline constexpr std::uint64_t kMostHandshakeBytes = 8192;

/// Splits what has come into messages. A message's memory is taken as its bytes come, not as its
/// length says.
class FrameBuffer {
 public:
  /// `most_bytes`: of one message.
  explicit FrameBuffer(std::uint64_t most_bytes = kMostHandshakeBytes) : most_bytes_(most_bytes) {}

  void allow(std::uint64_t most_bytes) { most_bytes_ = most_bytes; }
  void add(std::string_view bytes) { bytes_ += bytes; }
  /// Takes exactly `count` bytes, which are no message; nothing while they have not all come.
  [[nodiscard]] std::optional<std::string> take_bytes(std::size_t count);
  /// The next whole message.
  [[nodiscard]] std::optional<std::string> take_message();
  /// Returns whether a message announces more than the allowed length.
  [[nodiscard]] bool is_broken() const;
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  [[nodiscard]] std::uint64_t announced() const;

  std::uint64_t most_bytes_;
  std::string bytes_;
};

/// The message with its length before it.
[[nodiscard]] std::string framed(std::string_view message);

/// How an attempt to send or to receive came out.
enum class Transfer { done, late, closed };

/// Sends all bytes on a socket that does not block.
[[nodiscard]] Transfer send_all(const base::Descriptor& socket, std::string_view bytes,
                                const base::Deadline& deadline);

/// Waits until something has come and adds it to `buffer`. `reason`: of closed, the errno or 0.
[[nodiscard]] Transfer receive_some(const base::Descriptor& socket, FrameBuffer& buffer,
                                    const base::Deadline& deadline, int& reason);

/// A stream socket with the messages that have come and those that wait to be sent. Nothing blocks.
///
/// Threads: one.
struct FramedStream {
  base::Descriptor socket;
  FrameBuffer input = FrameBuffer();
  std::string output = {};

  /// Queues a message and sends what can be sent at once. A broken connection shows when it is
  /// read.
  void send(std::string_view message);
  void flush();
  /// Takes what has come. `late`: nothing has.
  [[nodiscard]] Transfer receive();
  /// What poll is to wait for.
  [[nodiscard]] pollfd polled() const;
};

}  // namespace dtrain::net
