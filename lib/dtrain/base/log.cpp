#include "dtrain/base/log.h"

#include <unistd.h>

#include <new>
#include <string>
#include <system_error>

#include "dtrain/base/error_file.h"
#include "dtrain/base/open_files.h"
#include "dtrain/base/printable.h"

namespace dtrain::base {

void log_line(std::string_view text) {
  const std::string line = fmt::format("dtrain: {}\n", text);
  // A closed standard error cannot be helped; the exit status still reports the failure.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

int report_error(ErrorKind kind, std::string message, ErrorScope scope) {
  for (char& c : message) {
    if (c == '\n') c = ' ';
  }
  message = with_open_file_limit(printable(message));
  const int status = static_cast<int>(kind);
  write_error_file("dtrain: error: " + message);
  if (!tell_error(status, "dtrain: error: " + message, scope)) log_line("error: " + message);
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

}  // namespace dtrain::base
