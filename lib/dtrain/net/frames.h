// Frames messages over a stream socket: each follows its length.
#pragma once

#include <poll.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/base/clock.h"
#include "dtrain/base/descriptor.h"

namespace dtrain::net {

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
