#include "dtrain/base/log.h"

#include <unistd.h>

#include <new>
#include <string>
#include <system_error>

#include "dtrain/base/error.h"
#include "dtrain/base/open_files.h"
#include "dtrain/base/printable.h"

namespace dtrain::base {

void log_line(std::string_view text) {
  const std::string line = fmt::format("dtrain: {}\n", text);
  // Nothing can be done about a closed standard error; the exit status still tells.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

int report_current_exception() {
  ErrorKind kind = ErrorKind::internal;
  std::string message;
  try {
    throw;
  } catch (const Error& error) {
    kind = error.kind();
    message = error.what();
  } catch (const std::bad_alloc&) {
    kind = ErrorKind::memory;
    message = "out of memory; use a smaller microbatch or model";
  } catch (const std::system_error& error) {
    const bool is_thread = error.code() == std::errc::resource_unavailable_try_again;
    if (is_thread) kind = ErrorKind::memory;
    message = is_thread ? fmt::format(
                              "cannot start a thread: {}; raise the limit on processes and "
                              "threads (ulimit -u, or the cgroup's pids.max)",
                              error.code().message())
                        : fmt::format("unexpected: {}", error.what());
  } catch (const std::exception& error) {
    message = fmt::format("unexpected: {}", error.what());
  } catch (...) {
    message = "unexpected exception of unknown type";
  }
  for (char& c : message) {
    if (c == '\n') c = ' ';
  }
  log_line("error: " + with_open_file_limit(printable(message)));
  return static_cast<int>(kind);
}

}  // namespace dtrain::base
