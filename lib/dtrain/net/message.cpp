#include "dtrain/net/message.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace dtrain::net {

namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::int64_t kMaxPollMs = 1'000'000;

/// Waits until the socket is ready or the deadline has passed.
void wait_for(const base::Descriptor& socket, short events, const base::Deadline& deadline) {
  pollfd waiting{.fd = socket.get(), .events = events, .revents = 0};
  ::poll(&waiting, 1,
         static_cast<int>(std::min<std::int64_t>(deadline.remaining().count(), kMaxPollMs)));
}

}  // namespace

std::uint64_t FrameBuffer::announced() const {
  return MessageReader(std::string_view(bytes_).substr(0, kLengthBytes)).number();
}

bool FrameBuffer::is_broken() const {
  return bytes_.size() >= kLengthBytes && announced() > max_bytes_;
}

std::optional<std::string> FrameBuffer::take_bytes(std::size_t count) {
  if (bytes_.size() < count) return std::nullopt;
  std::string taken = bytes_.substr(0, count);
  bytes_.erase(0, count);
  return taken;
}

std::optional<std::string> FrameBuffer::take_message() {
  if (bytes_.size() < kLengthBytes || is_broken()) return std::nullopt;
  const std::uint64_t size = announced();
  if (bytes_.size() - kLengthBytes < size) return std::nullopt;
  std::string message = bytes_.substr(kLengthBytes, size);
  bytes_.erase(0, kLengthBytes + size);
  return message;
}

std::string framed(std::string_view message) { return MessageWriter().text(message).bytes(); }

Transfer send_all(const base::Descriptor& socket, std::string_view bytes,
                  const base::Deadline& deadline) {
  while (!bytes.empty()) {
    const ssize_t count =
        ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(count));
    } else if (count < 0 && errno != EAGAIN && errno != EINTR) {
      return Transfer::closed;
    } else if (deadline.passed()) {
      return Transfer::timed_out;
    } else {
      wait_for(socket, POLLOUT, deadline);
    }
  }
  return Transfer::done;
}

Transfer receive_some(const base::Descriptor& socket, FrameBuffer& buffer,
                      const base::Deadline& deadline, int& reason) {
  std::array<char, 16 << 10> bytes;
  while (true) {
    const ssize_t count = ::recv(socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count > 0) {
      buffer.add({bytes.data(), static_cast<std::size_t>(count)});
      return Transfer::done;
    }
    if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
      reason = count == 0 ? 0 : errno;
      return Transfer::closed;
    }
    if (deadline.passed()) return Transfer::timed_out;
    wait_for(socket, POLLIN, deadline);
  }
}

void FramedStream::send(std::string_view message) {
  output += framed(message);
  flush();
}

void FramedStream::flush() {
  while (!output.empty()) {
    const ssize_t count =
        ::send(socket.get(), output.data(), output.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count <= 0) return;
    output.erase(0, static_cast<std::size_t>(count));
  }
}

Transfer FramedStream::receive() {
  int reason = 0;
  return receive_some(socket, input, base::Deadline(std::chrono::milliseconds(0)), reason);
}

pollfd FramedStream::polled() const {
  const int events = output.empty() ? POLLIN : POLLIN | POLLOUT;
  return {.fd = socket.get(), .events = static_cast<short>(events), .revents = 0};
}

}  // namespace dtrain::net
