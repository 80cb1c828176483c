#include "dtrain/base/error_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>

#include "dtrain/base/descriptor.h"
#include "dtrain/base/rank_env.h"

namespace dtrain::base {
namespace {

/// A file of this user's own that has no second name, made if need be and empty.
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

}  // namespace

std::string json_text(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c >= ' ' && c <= '~' ? c : '?';
  }
  return quoted + "\"";
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
    // The error that is to be reported counts, and standard error says it.
  }
}

}  // namespace dtrain::base
