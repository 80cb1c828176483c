#include "launcher/output/log_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <string>
#include <system_error>

#include "dtrain/base/error.h"
#include "dtrain/base/io/storage_error.h"

namespace launcher {
namespace {

using dtrain::base::ErrorKind;
using dtrain::base::fail_on_storage;
using dtrain::base::retry_transient;

/// Creates a private folder for temporary files.
std::string make_temporary(std::error_code& error) {
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  if (error) return "under $TMPDIR";
  const std::string pattern = (parent / "dtrun-XXXXXX").string();
  std::string path;
  const auto make = [&] {
    path = pattern;
    return ::mkdtemp(path.data()) == nullptr ? -1 : 0;
  };
  if (retry_transient(pattern, make) == 0) return path;
  error.assign(errno, std::system_category());
  return pattern;
}

/// True if the path is a folder of this user, not a link.
bool is_own_folder(const std::string& path) {
  struct stat found {};
  return ::lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) &&
         found.st_uid == ::geteuid();
}

/// Creates a folder; with several nodes that share a disk, another launcher may have made it.
void make_folder(const std::string& path, bool may_exist, std::error_code& error) {
  if (error) return;
  const auto make = [&] {
    if (::mkdir(path.c_str(), 0777) == 0) return 0;
    const int why = errno;
    if (may_exist && why == EEXIST && is_own_folder(path)) return 0;
    may_exist = true;  // a file server may have created it although its answer was lost
    errno = why;
    return -1;
  };
  if (retry_transient(path, make) != 0) error.assign(errno, std::system_category());
}

void make_folders(const std::string& path, std::error_code& error) {
  const auto make = [&] {
    std::filesystem::create_directories(path, error);
    errno = error.value();
    return error ? -1 : 0;
  };
  (void)retry_transient(path, make);
}

}  // namespace

// Several containers may have equal process ids.
std::string make_run_id() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  char text[32];
  std::strftime(text, sizeof(text), "%Y%m%d-%H%M%S", &local);
  std::string host = host_name();
  std::ranges::replace(host, '/', '-');
  std::uint32_t random = 0;
  if (::getentropy(&random, sizeof(random)) != 0) random = static_cast<std::uint32_t>(::getpid());
  return fmt::format("{}-{}-{:08x}", text, host, random);
}

LogFolder::LogFolder(const Options& options, const Placement& placement)
    : first_rank_(placement.own().first_rank),
      num_ranks_(options.num_ranks),
      keep_(options.redirects.any() || options.tee.any()),
      has_logs_(keep_),
      run_id_(placement.run_id.empty() ? make_run_id() : placement.run_id) {
  if (!keep_) return;
  const bool is_named = !options.log_dir.empty();
  std::error_code error;
  if (is_named) {
    root_ = (std::filesystem::path(options.log_dir) / run_id_).string();
    make_folders(options.log_dir, error);
    make_folder(root_, placement.has_several_nodes(), error);
  } else {
    root_ = make_temporary(error);
  }
  attempt_ = root_ + "/attempt_0";
  if (!error) error = make_rank_folders();
  if (!error) return;
  fail_on_storage(ErrorKind::usage, error.value(),
                  fmt::format("{}: cannot create folder {}: {}; name a folder that can be written",
                              is_named ? "--log-dir" : "temporary files", root_, error.message()));
}

std::string LogFolder::begin_attempt(int number) {
  if (!keep_) return {};
  attempt_ = fmt::format("{}/attempt_{}", root_, number);
  is_first_ = false;
  const std::error_code error = make_rank_folders();
  has_logs_ = !error;
  if (!error) return {};
  return fmt::format("cannot create folder {}: {}; attempt {} has no logs", attempt_,
                     error.message(), number);
}

std::error_code LogFolder::make_rank_folders() const {
  std::error_code error;
  make_folders(attempt_, error);
  for (int index = 0; index < num_ranks_; ++index) {
    make_folder(rank_folder(first_rank_ + index), false, error);
  }
  return error;
}

std::string LogFolder::rank_folder(int rank) const { return fmt::format("{}/{}", attempt_, rank); }

std::string LogFolder::error_file(int rank) const {
  return has_logs_ ? rank_folder(rank) + "/error.json" : "";
}

LogFile LogFolder::create_log(int rank, const char* stream, std::string& why_not) const {
  if (!has_logs_) return {};
  LogFile file{.path = fmt::format("{}/{}.log", rank_folder(rank), stream)};
  const auto create = [&] { return file.create() ? 0 : -1; };
  // A restart can do without logs, so it does not retry each of them.
  if ((is_first_ ? retry_transient(file.path, create) : create()) == 0) return file;
  const int error = errno;
  why_not = fmt::format("cannot create {}: {}", file.path, std::strerror(error));
  if (is_first_) fail_on_storage(ErrorKind::usage, error, "--log-dir: " + why_not);
  return file;
}

}  // namespace launcher
