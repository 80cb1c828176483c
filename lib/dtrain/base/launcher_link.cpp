#include "dtrain/base/launcher_link.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>

#include "dtrain/base/error.h"
#include "dtrain/base/host/threads.h"
#include "dtrain/base/log.h"
#include "dtrain/base/rank_env.h"

namespace dtrain::base {
namespace {

constexpr std::size_t kMaxLine = 4096;  // of either side

[[noreturn]] void end_process(std::string_view why) {
  log_line(why);
  ::_exit(static_cast<int>(ErrorKind::comm));
}

/// Handles `abort RANK REASON`: ends the process.
[[noreturn]] void abort_because(std::string_view rank_and_reason) {
  const auto space = rank_and_reason.find(' ');
  const std::string_view reason =
      space == std::string_view::npos ? "failed" : rank_and_reason.substr(space + 1);
  end_process(fmt::format("ended because rank {} {}", rank_and_reason.substr(0, space), reason));
}

/// Stores the number that follows `word`; no-op if the line starts otherwise.
template <typename Number>
void parse_number(std::string_view line, std::string_view word, std::atomic<Number>& number) {
  if (!line.starts_with(word)) return;
  Number value = 0;
  std::from_chars(line.data() + word.size(), line.data() + line.size(), value);
  number = value;
}

/// The control descriptor of this process if it is still connected to a launcher, else -1.
int control_fd_of_process() noexcept {
  int fd = -1;
  try {
    fd = rank_env_of_process().control_fd;
  } catch (...) {  // the environment itself is invalid
    return -1;
  }
  // A wrapper between dtrun and this process may have closed it and reused the number.
  const auto option = [fd](int name) {
    int value = -1;
    socklen_t size = sizeof(value);
    return ::getsockopt(fd, SOL_SOCKET, name, &value, &size) == 0 ? value : -1;
  };
  const bool is_line = fd >= 0 && option(SO_DOMAIN) == AF_UNIX && option(SO_TYPE) == SOCK_STREAM;
  return is_line ? fd : -1;
}

/// Sends without blocking; returns whether all of it was sent.
bool send_now(int fd, std::string_view text) noexcept {
  return ::send(fd, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL) == std::ssize(text);
}

}  // namespace

LauncherLink::LauncherLink(int control_fd) : control_fd_(control_fd) {
  if (control_fd_ < 0) return;
  // Child processes must not keep the connection open.
  if (::fcntl(control_fd_, F_SETFD, FD_CLOEXEC) != 0) {
    fail(ErrorKind::usage, "DTRUN_CONTROL_FD: descriptor {} is not open ({}); unset the variable",
         control_fd, std::strerror(errno));
  }
  stop_fd_ = ::eventfd(0, EFD_CLOEXEC);
  thread_ = start_without_signals([this] { listen(); });
}

LauncherLink::~LauncherLink() {
  if (control_fd_ < 0) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(stop_fd_, &one, sizeof(one));
  thread_.join();
  ::close(stop_fd_);
}

void LauncherLink::progress(std::int64_t step, double waited) noexcept {
  constexpr double kMicroseconds = 1e6;
  std::array<char, 64> line;
  const auto end = fmt::format_to_n(line.data(), line.size(), "progress {} {}\n", step,
                                    static_cast<std::int64_t>(waited * kMicroseconds));
  send({line.data(), end.size});
}

void LauncherLink::committed(std::int64_t step, std::string_view run,
                             std::string_view advice) noexcept {
  std::array<char, kMaxLine> line;
  const auto end =
      fmt::format_to_n(line.data(), line.size(), "run {}\ncommitted {} {}\n", run, step, advice);
  if (end.size <= line.size()) send({line.data(), end.size});
}

void LauncherLink::requeue_file(const std::string& path) {
  const std::string whole = std::filesystem::absolute(path).string();
  if (whole.find('\n') == whole.npos) send(fmt::format("requeue-file {}\n", whole));
}

void LauncherLink::send(std::string_view text) const noexcept {
  if (control_fd_ >= 0) (void)send_now(control_fd_, text);
}

bool has_launcher() noexcept { return control_fd_of_process() >= 0; }

bool send_error_to_launcher(int status, std::string_view line, ErrorScope scope) noexcept {
  const int fd = control_fd_of_process();
  if (fd < 0) return false;
  std::array<char, kMaxLine> message;
  const char* const word = scope == ErrorScope::all ? "refused" : "error";
  const auto end =
      fmt::format_to_n(message.data(), message.size(), "{} {} {}\n", word, status, line);
  return end.size <= message.size() && send_now(fd, {message.data(), end.size});
}

void request_plain_output() noexcept {
  const int fd = control_fd_of_process();
  if (fd >= 0) (void)send_now(fd, "plain-output\n");
}

// Ignores unknown lines, which a newer launcher may send.
void LauncherLink::handle_command(std::string_view line) {
  constexpr std::string_view kAbort = "abort ";
  parse_number(line, "columns ", columns_);
  parse_number(line, "recovered ", recovery_);
  parse_number(line, "stop ", stop_signal_);
  if (line == "records" && !sent_last_) send_records("records-end\n");
  if (!obeys_abort_) return;
  if (line == "leave") ::_exit(static_cast<int>(ErrorKind::comm));  // dtrun reports why
  if (line.starts_with(kAbort)) abort_because(line.substr(kAbort.size()));
}

void LauncherLink::send_last_records() {
  sent_last_ = true;
  send_records("records-last\n");
}

void LauncherLink::send_records(std::string_view end) {
  std::string text = fmt::format("where {}\n", activity_.describe());
  send(text.append(activity_.call_report()).append(end));
}

void LauncherLink::listen() {
  constexpr int kBusyInterval_ms = 1000;
  std::string partial;
  std::array<char, kMaxLine> buffer;
  for (;;) {
    std::array<pollfd, 2> waits = {{{control_fd_, POLLIN, 0}, {stop_fd_, POLLIN, 0}}};
    const int ready = ::poll(waits.data(), waits.size(), kBusyInterval_ms);
    if (ready < 0 && errno != EINTR) {
      end_process(std::string("lost the connection to dtrun: ") + std::strerror(errno));
    }
    if (waits[1].revents != 0) return;
    if (ready == 0 && activity_.has_advanced()) send("busy\n");
    if (waits[0].revents == 0) continue;
    const ssize_t length = ::recv(control_fd_, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (length < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (length <= 0) end_process("ended because dtrun is gone");
    partial.append(buffer.data(), static_cast<std::size_t>(length));
    for (auto end = partial.find('\n'); end != std::string::npos; end = partial.find('\n')) {
      handle_command(std::string_view(partial).substr(0, end));
      partial.erase(0, end + 1);
    }
    if (partial.size() > kMaxLine) partial.clear();
  }
}

}  // namespace dtrain::base
