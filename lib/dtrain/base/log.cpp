#include "dtrain/base/log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <system_error>

#include "dtrain/base/host/process.h"
#include "dtrain/base/io/descriptor.h"
#include "dtrain/base/rank_env.h"
#include "dtrain/base/text/text.h"

namespace dtrain::base {
namespace {

/// Creates or truncates a regular file of this user without hard links; empty on failure.
Descriptor open_own_file(const std::string& path) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  Descriptor file(::open(path.c_str(), kFlags, 0600));
  struct stat status {};
  const bool is_own = file && ::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) &&
                      status.st_uid == ::geteuid() && status.st_nlink == 1;
  const bool is_ready =
      is_own && ::fchmod(file.get(), 0600) == 0 && ::ftruncate(file.get(), 0) == 0;
  return is_ready ? std::move(file) : Descriptor();
}

int report() {
  try {
    throw;
  } catch (const std::exception& error) {
    const std::string_view text = error.what();
    // gloo's thread throws this if it receives malformed data.
    if (text.find("gloo/transport") == std::string_view::npos) return report_current_exception();
    return report_error(
        ErrorKind::comm,
        fmt::format("gloo failed: {}; the sender may not be a rank of this job: use "
                    "a network that other programs cannot reach, or --backend shm",
                    text.substr(0, text.find('\n'))),
        ErrorScope::own);
  } catch (...) {
    return report_current_exception();
  }
}

}  // namespace

void log_line(std::string_view text) {
  const std::string line = fmt::format("dtrain: {}\n", text);
  // If standard error is closed, the exit status still reports the failure.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

int report_error(ErrorKind kind, std::string message, ErrorScope scope) {
  for (char& c : message) {
    if (c == '\n') c = ' ';
  }
  message = with_open_file_limit(printable(message));
  const int status = static_cast<int>(kind);
  write_error_file("dtrain: error: " + message);
  if (!send_error_to_launcher(status, "dtrain: error: " + message, scope))
    log_line("error: " + message);
  return status;
}

int report_current_exception(ErrorScope scope) {
  ErrorKind kind = ErrorKind::internal;
  std::string message;
  try {
    throw;
  } catch (const Error& error) {
    kind = error.kind();
    message = error.what();
  } catch (const std::bad_alloc&) {
    kind = ErrorKind::memory;
    message = "out of memory; use --recompute level, a smaller --microbatch or a smaller model";
  } catch (const std::system_error& error) {
    const bool is_of_thread = error.code() == std::errc::resource_unavailable_try_again;
    if (is_of_thread) kind = ErrorKind::memory;
    message = is_of_thread ? fmt::format(
                                 "cannot start a thread ({}): raise the limit on processes and "
                                 "threads (ulimit -u, or the cgroup's pids.max) or memory, or "
                                 "lower --threads",
                                 error.code().message())
                           : fmt::format("unexpected: {}", error.what());
  } catch (const std::exception& error) {
    message = fmt::format("unexpected: {}", error.what());
  } catch (...) {
    message = "unexpected exception of unknown type";
  }
  return report_error(kind, std::move(message), scope);
}

std::string error_file_content(std::string_view message, long long time) {
  const std::string text = json_text(message);
  return fmt::format(
      R"({{"message": {{"message": {}, "extraInfo": {{"py_callstack": {}, "timestamp": "{}"}}}}}})"
      "\n",
      text, text, time);
}

void write_error_file(std::string_view message) noexcept {
  try {
    const std::string path = error_file_of_process();
    if (path.empty()) return;
    const Descriptor file = open_own_file(path);
    if (!file) return;
    const std::string content = error_file_content(message, std::time(nullptr));
    [[maybe_unused]] const auto written = ::write(file.get(), content.data(), content.size());
  } catch (...) {
    // Ignored: standard error reports the original error.
  }
}

void report_unhandled_exceptions() noexcept {
  std::set_terminate([] {
    if (!std::current_exception()) std::abort();
    ::_exit(report());
  });
}

void WaitReporter::report(const std::function<std::string()>& whom) {
  if (!times_.is_due()) return;
  const std::string advice = std::exchange(advice_, "");
  log_info("waiting for {}, {} of {} (--comm-timeout){}{}", whom(), readable_time(times_.waited()),
           readable_time(Seconds(limit_).count()), advice.empty() ? "" : "; ", advice);
}

}  // namespace dtrain::base
