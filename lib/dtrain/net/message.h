// Messages between processes: encodes numbers and strings, and frames messages over a stream socket
// with a length prefix.
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

/// The continuation bit of a variable-length number.
inline constexpr std::uint64_t kContinuationBit = 1 << 7;

/// Encodes a message: little-endian numbers, and strings with a length prefix.
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
  /// Variable-length encoding, a byte for each 7 bits; short for small numbers.
  MessageWriter& small_number(std::uint64_t value) {
    for (; value >= kContinuationBit; value >>= 7) {
      bytes_.push_back(static_cast<char>(value | kContinuationBit));
    }
    bytes_.push_back(static_cast<char>(value));
    return *this;
  }
  /// A string with a variable-length prefix.
  MessageWriter& short_text(std::string_view value) {
    small_number(value.size());
    bytes_ += value;
    return *this;
  }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

/// Decodes an untrusted message: after the first invalid size every read returns empty or zero, and
/// is_whole() is false.
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
      value |= (byte & ~kContinuationBit) << shift;
      if ((byte & kContinuationBit) == 0) return value;
    }
    is_good_ = false;
    return 0;
  }
  [[nodiscard]] std::string short_text() { return std::string(take(small_number())); }
  [[nodiscard]] bool is_good() const { return is_good_; }
  /// Returns whether every read succeeded and nothing is left.
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

/// The longest message from an unauthenticated peer.
inline constexpr std::uint64_t kMaxHandshakeBytes = 8192;

/// Splits received bytes into messages. Memory grows with the bytes received, not with the
/// announced length.
class FrameBuffer {
 public:
  /// `max_bytes`: of one message.
  explicit FrameBuffer(std::uint64_t max_bytes = kMaxHandshakeBytes) : max_bytes_(max_bytes) {}

  void allow(std::uint64_t max_bytes) { max_bytes_ = max_bytes; }
  void add(std::string_view bytes) { bytes_ += bytes; }
  /// Takes exactly `count` raw bytes; empty until all have arrived.
  [[nodiscard]] std::optional<std::string> take_bytes(std::size_t count);
  /// Takes the next complete message; empty until it has arrived.
  [[nodiscard]] std::optional<std::string> take_message();
  /// Returns whether a message exceeds the allowed length.
  [[nodiscard]] bool is_broken() const;
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  [[nodiscard]] std::uint64_t announced() const;

  std::uint64_t max_bytes_;
  std::string bytes_;
};

/// The message with its length prefix.
[[nodiscard]] std::string framed(std::string_view message);

/// Outcome of a send or receive. closed: the connection is closed or broken.
enum class Transfer { done, timed_out, closed };

/// Sends all bytes on a non-blocking socket.
[[nodiscard]] Transfer send_all(const base::Descriptor& socket, std::string_view bytes,
                                const base::Deadline& deadline);

/// Waits for data and appends it to `buffer`. `reason`: if closed, the errno or 0.
[[nodiscard]] Transfer receive_some(const base::Descriptor& socket, FrameBuffer& buffer,
                                    const base::Deadline& deadline, int& reason);

/// A non-blocking stream socket with its receive and send buffers.
///
/// Threads: one.
struct FramedStream {
  base::Descriptor socket;
  FrameBuffer input = FrameBuffer();
  std::string output = {};

  /// Queues a message and sends as much as the socket takes. receive() reports broken connections.
  void send(std::string_view message);
  void flush();
  /// Reads available data. timed_out: there is none.
  [[nodiscard]] Transfer receive();
  /// The descriptor and events to poll.
  [[nodiscard]] pollfd polled() const;
};

}  // namespace dtrain::net
