#include "launcher/output/output_writer.h"

#include <linux/limits.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/io/descriptor.h"
#include "dtrain/base/io/storage_error.h"

namespace launcher {

void start_writer_thread(std::function<void()> body) {
  try {
    std::thread(std::move(body)).detach();
  } catch (const std::system_error& error) {
    dtrain::base::fail(dtrain::base::ErrorKind::spawn,
                       "cannot start a thread: {}; raise the limit (ulimit -u)", error.what());
  }
}

int write_piece(int fd, std::string_view& rest, Pieces pieces) {
  constexpr std::size_t kPiece = std::size_t{1} << 16;
  std::size_t size = std::min(kPiece, rest.size());
  if (pieces == Pieces::atomic && size > PIPE_BUF) {
    const auto end = rest.substr(0, PIPE_BUF).rfind('\n');
    size = end == std::string_view::npos ? PIPE_BUF : end + 1;
  }
  const ssize_t written = ::write(fd, rest.data(), size);
  if (written >= 0) {
    rest.remove_prefix(static_cast<std::size_t>(written));
    return 0;
  }
  if (errno == EAGAIN) {  // another program has made it non-blocking
    pollfd ready{fd, POLLOUT, 0};
    ::poll(&ready, 1, -1);
    return 0;
  }
  return errno == EINTR ? 0 : errno;
}

Waker::Waker() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void Waker::wake() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(fd_.get(), &one, sizeof(one));
}

void Waker::clear() const {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto length = ::read(fd_.get(), &count, sizeof(count));
}

using dtrain::base::Clock;

struct OutputWriter::State {
  int fd = -1;
  Pieces pieces = Pieces::large;
  std::shared_ptr<const Waker> waker;
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::string queue;        // not yet taken by the thread
  std::size_t in_hand = 0;  // bytes that the thread has taken and not written
  int full_reason = 0;
  std::optional<Clock::time_point> patience_end;  // none: waits for a full disk
  std::int64_t lines_lost = 0;
  bool closed = false;
  bool stopped = false;

  void run();
  void write_batch(std::string_view rest, std::unique_lock<std::mutex>& lock);
  void wait_for_room(int reason, std::unique_lock<std::mutex>& lock);
};

void OutputWriter::State::wait_for_room(int reason, std::unique_lock<std::mutex>& lock) {
  constexpr std::chrono::milliseconds kPause(50);
  if (std::exchange(full_reason, reason) == 0) waker->wake();
  changed.wait_for(lock, kPause, [this] { return stopped; });
  closed = stopped || (patience_end && Clock::now() >= *patience_end);
}

/// Returns early once nothing more can be written.
void OutputWriter::State::write_batch(std::string_view rest, std::unique_lock<std::mutex>& lock) {
  while (!rest.empty() && !closed) {
    lock.unlock();
    const int error = write_piece(fd, rest, pieces);
    lock.lock();
    in_hand = rest.size();
    if (dtrain::base::is_full_disk(error)) {
      wait_for_room(error, lock);
      continue;
    }
    full_reason = 0;
    closed = error != 0;
    waker->wake();
  }
  if (full_reason == 0) return;
  lines_lost += std::count(rest.begin(), rest.end(), '\n');
  lines_lost += std::count(queue.begin(), queue.end(), '\n');
}

void OutputWriter::State::run() {
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [this] { return stopped || !queue.empty(); });
    if (queue.empty()) return;
    const std::string batch = std::exchange(queue, {});
    in_hand = batch.size();
    write_batch(batch, lock);
    in_hand = 0;
    if (closed) queue.clear();
    waker->wake();
  }
}

OutputWriter::OutputWriter(int fd, std::shared_ptr<const Waker> waker, Pieces pieces)
    : state_(std::make_shared<State>()) {
  state_->fd = fd;
  state_->pieces = pieces;
  state_->waker = std::move(waker);
  start_writer_thread([state = state_] { state->run(); });
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

int OutputWriter::full_reason() const {
  const std::lock_guard lock(state_->mutex);
  return state_->full_reason;
}

void OutputWriter::finish(std::chrono::duration<double> patience) {
  const std::lock_guard lock(state_->mutex);
  state_->patience_end = Clock::now() + std::chrono::duration_cast<Clock::duration>(patience);
}

std::int64_t OutputWriter::take_lines_lost() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->lines_lost, 0);
}

void write_error_for_a_while(const std::string& text) {
  constexpr auto kLimit = std::chrono::seconds(1);
  try {
    OutputWriter writer(STDERR_FILENO, std::make_shared<Waker>());
    writer.write(text);
    const auto start = dtrain::base::Clock::now();
    while (writer.waiting() > 0 && dtrain::base::Clock::now() - start < kLimit) ::usleep(1000);
  } catch (const dtrain::base::Error&) {  // no thread can be started
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
  }
}

}  // namespace launcher
