#include "launcher/output/log_writer.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "dtrain/base/io/storage_error.h"

namespace launcher {
namespace {

// Renames the file to FILE.1. Returns 0 or an errno; on an error the file keeps its name and
// receives the further output.
int begin_another(LogFile& file) {
  LogFile next{.path = file.path};
  const std::string old = file.path + ".1";
  if (std::rename(file.path.c_str(), old.c_str()) != 0) return errno;
  if (!next.create()) {
    const int error = errno;
    std::rename(old.c_str(), file.path.c_str());
    return error;
  }
  file = std::move(next);
  return 0;
}

}  // namespace

bool LogFile::create() {
  descriptor = dtrain::base::Descriptor(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_APPEND, 0666));
  return static_cast<bool>(descriptor);
}

struct LogWriter::State {
  struct File {
    std::string name;
    LogFile file;           // only the thread uses it and the next three
    std::size_t size = 0;   // bytes since the last rotation or attempt at one
    std::size_t limit = 0;  // bytes at which the file is rotated; 0: never
    bool outgrown = false;  // a warning has said that it grows beyond the limit
    std::string queue;
    std::size_t missing = 0;  // lost bytes that no warning has counted yet
    bool broken = false;      // nothing more is written to it
  };

  std::shared_ptr<const Waker> waker;
  std::size_t size_limit = 0;
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::deque<File> files;   // a deque: the thread keeps a pointer to a file while others are added
  std::deque<File*> tasks;  // files with a queue, or to be closed; the thread is at the first
  std::size_t waiting = 0;  // bytes in queues or being written by the thread
  std::optional<std::size_t> limit;
  std::vector<std::string> warnings;
  bool finished = false;
  bool stopped = false;

  void run();
  void write_batch(File& file, std::unique_lock<std::mutex>& lock);
  void close(File& file, std::unique_lock<std::mutex>& lock);
  [[nodiscard]] static int write_some(File& file, std::string_view& rest, std::string& warning);
  void lose(File& file, std::size_t num_bytes, std::string_view reason);
  void cut_short(File& file, std::string_view reason);
};

void LogWriter::State::run() {
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [this] { return stopped || !tasks.empty(); });
    if (stopped) return;
    File& file = *tasks.front();
    if (!file.queue.empty()) {
      write_batch(file, lock);
    } else if (finished) {
      close(file, lock);
    }
    tasks.pop_front();
    waker->wake();
  }
}

void LogWriter::State::write_batch(File& file, std::unique_lock<std::mutex>& lock) {
  const std::string batch = std::exchange(file.queue, {});
  std::string_view rest = batch;
  int error = 0;
  while (!rest.empty() && error == 0) {
    const std::size_t before = rest.size();
    std::string warning;
    lock.unlock();
    error = write_some(file, rest, warning);
    lock.lock();
    if (!warning.empty()) warnings.push_back(std::move(warning));
    waiting -= before - rest.size();
  }
  waiting -= rest.size();
  // A stale descriptor stays stale.
  const bool is_transient = error != ESTALE && dtrain::base::storage_fault(error) !=
                                                   dtrain::base::StorageFault::permanent;
  if (is_transient) {
    lose(file, rest.size(), std::strerror(error));
  } else if (error != 0) {
    cut_short(file, std::strerror(error));
  }
}

// Runs without the lock. Writes a piece from the front of `rest`, after rotating a full file; if
// rotation fails, the file may grow by its limit again. Returns 0, or an errno if nothing was
// written.
int LogWriter::State::write_some(File& file, std::string_view& rest, std::string& warning) {
  if (file.limit > 0 && file.size >= file.limit) {
    file.size = 0;
    const int error = begin_another(file.file);
    if (error != 0 && !std::exchange(file.outgrown, true)) {
      warning = fmt::format("{} grows beyond --log-size-limit: cannot replace {}: {}", file.name,
                            file.file.path, std::strerror(error));
    }
  }
  std::string_view part = rest.substr(0, file.limit > 0 ? file.limit - file.size : rest.npos);
  const std::size_t before = part.size();
  const int error = write_piece(file.file.descriptor.get(), part);
  const std::size_t written = before - part.size();
  file.size += written;
  rest.remove_prefix(written);
  return error;
}

// On a network file system closing may take as long as writing.
void LogWriter::State::close(File& file, std::unique_lock<std::mutex>& lock) {
  if (file.missing > 0) {
    warnings.push_back(fmt::format("{} lacks {} bytes", file.name, std::exchange(file.missing, 0)));
  }
  lock.unlock();
  file.file.descriptor.reset();
  lock.lock();
}

void LogWriter::State::lose(File& file, std::size_t num_bytes, std::string_view reason) {
  if (file.missing == 0) warnings.push_back(fmt::format("{} has a gap: {}", file.name, reason));
  file.missing += num_bytes;
}

void LogWriter::State::cut_short(File& file, std::string_view reason) {
  warnings.push_back(fmt::format("{} is cut short: {}", file.name, reason));
  waiting -= file.queue.size();
  file.queue.clear();
  file.missing = 0;
  file.broken = true;
}

void Log::write(std::string_view bytes) const {
  if (writer_ != nullptr) writer_->write(index_, bytes);
}

LogWriter::LogWriter(std::shared_ptr<const Waker> waker, std::int64_t size_limit)
    : state_(std::make_shared<State>()) {
  state_->waker = std::move(waker);
  state_->size_limit = static_cast<std::size_t>(size_limit);
}

LogWriter::~LogWriter() {
  const std::lock_guard lock(state_->mutex);
  state_->stopped = true;
  state_->changed.notify_one();
}

Log LogWriter::add(LogFile file, std::string name) {
  const std::lock_guard lock(state_->mutex);
  if (state_->files.empty()) start_writer_thread([state = state_] { state->run(); });
  state_->files.push_back(
      {.name = std::move(name), .file = std::move(file), .limit = state_->size_limit, .queue = {}});
  return {*this, state_->files.size() - 1};
}

void LogWriter::warn(std::string text) {
  const std::lock_guard lock(state_->mutex);
  state_->warnings.push_back(std::move(text));
}

void LogWriter::write(std::size_t index, std::string_view bytes) {
  const std::lock_guard lock(state_->mutex);
  State::File& file = state_->files[index];
  if (file.broken || state_->finished || bytes.empty()) return;
  if (state_->limit && state_->waiting > *state_->limit) {
    return state_->lose(file, bytes.size(), "its disk does not keep up");
  }
  if (file.queue.empty()) state_->tasks.push_back(&file);
  file.queue += bytes;
  state_->waiting += bytes.size();
  state_->changed.notify_one();
}

void LogWriter::drop_beyond(std::size_t limit) {
  const std::lock_guard lock(state_->mutex);
  state_->limit = limit;
}

void LogWriter::finish() {
  const std::lock_guard lock(state_->mutex);
  state_->finished = true;
  for (State::File& file : state_->files) state_->tasks.push_back(&file);
  state_->changed.notify_one();
}

std::size_t LogWriter::waiting() const {
  const std::lock_guard lock(state_->mutex);
  return state_->waiting;
}

std::size_t LogWriter::missing() const {
  const std::lock_guard lock(state_->mutex);
  std::size_t sum = state_->waiting;
  for (const State::File& file : state_->files) sum += file.missing;
  return sum;
}

bool LogWriter::idle() const {
  const std::lock_guard lock(state_->mutex);
  return state_->tasks.empty();
}

std::vector<std::string> LogWriter::take_warnings() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->warnings, {});
}

}  // namespace launcher
