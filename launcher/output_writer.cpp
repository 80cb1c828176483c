#include "launcher/output_writer.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "dtrain/base/error.h"
#include "launcher/descriptor.h"

namespace launcher {

struct OutputWriter::State {
  int fd = -1;
  Descriptor wake;
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::string queue;        // not yet taken by the thread
  std::size_t in_hand = 0;  // bytes that the thread has taken and not written
  bool closed = false;
  bool stopped = false;

  void run();
  bool write_piece(std::string_view& rest) const;
  void tell() const {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(wake.get(), &one, sizeof(one));
  }
};

/// Returns: whether more can be written.
bool OutputWriter::State::write_piece(std::string_view& rest) const {
  constexpr std::size_t kPiece = std::size_t{1} << 16;
  const ssize_t written = ::write(fd, rest.data(), std::min(kPiece, rest.size()));
  if (written >= 0) {
    rest.remove_prefix(static_cast<std::size_t>(written));
    return true;
  }
  if (errno == EAGAIN) {  // another program has made it non-blocking
    pollfd ready{fd, POLLOUT, 0};
    ::poll(&ready, 1, -1);
    return true;
  }
  return errno == EINTR;
}

void OutputWriter::State::run() {
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [this] { return stopped || !queue.empty(); });
    if (queue.empty()) return;
    const std::string batch = std::exchange(queue, {});
    in_hand = batch.size();
    for (std::string_view rest = batch; !rest.empty() && !closed;) {
      lock.unlock();
      const bool more = write_piece(rest);
      lock.lock();
      in_hand = rest.size();
      if (!more) closed = true;
      tell();
    }
    in_hand = 0;
    if (closed) queue.clear();
    tell();
  }
}

OutputWriter::OutputWriter(int fd, int wake) : state_(std::make_shared<State>()) {
  state_->fd = fd;
  state_->wake = Descriptor(::dup(wake));
  try {
    std::thread([state = state_] { state->run(); }).detach();
  } catch (const std::system_error& error) {
    dtrain::base::fail(dtrain::base::ErrorKind::spawn,
                       "cannot start a thread: {}; raise the limit (ulimit -u)", error.what());
  }
}

OutputWriter::~OutputWriter() {
  const std::lock_guard lock(state_->mutex);
  state_->stopped = true;
  state_->changed.notify_one();
}

void OutputWriter::write(std::string bytes) {
  const std::lock_guard lock(state_->mutex);
  if (state_->closed || bytes.empty()) return;
  if (state_->queue.empty()) {
    state_->queue = std::move(bytes);
  } else {
    state_->queue += bytes;
  }
  state_->changed.notify_one();
}

std::size_t OutputWriter::waiting() const {
  const std::lock_guard lock(state_->mutex);
  return state_->queue.size() + state_->in_hand;
}

bool OutputWriter::closed() const {
  const std::lock_guard lock(state_->mutex);
  return state_->closed;
}

}  // namespace launcher
