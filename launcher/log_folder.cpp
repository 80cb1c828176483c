#include "launcher/log_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/storage_error.h"

namespace launcher {
namespace {

using dtrain::base::Descriptor;
using dtrain::base::ErrorKind;
using dtrain::base::fail_on_storage;
using dtrain::base::with_patience;

/// Holds a lock on a folder while a process of this dtrun lives; none: the folder is gone.
Descriptor lock_folder(const std::string& path) {
  Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat held {};
  struct stat named {};
  const bool good = folder && ::flock(folder.get(), LOCK_EX) == 0 &&
                    ::fstat(folder.get(), &held) == 0 && ::lstat(path.c_str(), &named) == 0 &&
                    held.st_ino == named.st_ino && held.st_dev == named.st_dev;
  return good ? std::move(folder) : Descriptor();
}

bool is_error_file(const std::string& name) {
  return name.starts_with("error-") && name.ends_with(".json");
}

/// Returns the names in a folder, as far as they can be read.
std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  return names;
}

/// Removes a temporary folder that a killed dtrun left behind; those with logs stay.
void remove_if_dead(const std::filesystem::path& path) {
  const Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status {};
  if (!folder || ::fstat(folder.get(), &status) != 0 || status.st_uid != ::geteuid()) return;
  if (::flock(folder.get(), LOCK_EX | LOCK_NB) != 0) return;  // its dtrun lives
  const std::vector<std::string> names = names_in(path);
  if (!std::ranges::all_of(names, is_error_file)) return;
  for (const std::string& name : names) ::unlinkat(folder.get(), name.c_str(), 0);
  ::rmdir(path.c_str());
}

// Nobody gives such a name to a folder of his own, so dtrun may remove folders of this name.
constexpr std::string_view kTemporaryPrefix = "dtrun-";
constexpr std::size_t kRandomDigits = 32;

bool is_temporary_name(std::string_view name) {
  return name.size() == kTemporaryPrefix.size() + kRandomDigits &&
         name.starts_with(kTemporaryPrefix) &&
         name.find_first_not_of("0123456789abcdef", kTemporaryPrefix.size()) == name.npos;
}

/// Returns: no name where the system gives no random bytes.
std::string make_temporary_name() {
  std::uint64_t random[2] = {};
  if (::getentropy(random, sizeof(random)) != 0) return {};
  return fmt::format("{}{:016x}{:016x}", kTemporaryPrefix, random[0], random[1]);
}

void sweep(const std::filesystem::path& folder) {
  for (const std::string& name : names_in(folder)) {
    if (is_temporary_name(name)) remove_if_dead(folder / name);
  }
}

/// A private folder among the temporary files; `lock` shows other dtruns that it is in use.
std::string make_temporary(std::error_code& error, Descriptor& lock) {
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  if (error) return "under $TMPDIR";
  sweep(parent);
  for (;;) {
    const std::string name = make_temporary_name();
    const std::string path = (parent / name).string();
    const auto make = [&] { return name.empty() ? -1 : ::mkdir(path.c_str(), 0700); };
    if (with_patience(path, make) != 0) {
      error.assign(errno, std::system_category());
      return path;
    }
    lock = lock_folder(path);
    if (lock || errno != ENOENT) return path;  // else another dtrun's sweep was faster
  }
}

/// Returns whether there is a folder of this user, and no link to another place.
bool is_own_folder(const std::string& path) {
  struct stat found {};
  return ::lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) &&
         found.st_uid == ::geteuid();
}

/// Makes a folder; with several nodes that share a disk, another launcher may have made it.
void make_folder(const std::string& path, bool may_exist, std::error_code& error) {
  if (error) return;
  const auto make = [&] {
    if (::mkdir(path.c_str(), 0777) == 0) return 0;
    const int why = errno;
    if (may_exist && why == EEXIST && is_own_folder(path)) return 0;
    may_exist = true;  // a server may have done what it did not answer to
    errno = why;
    return -1;
  };
  if (with_patience(path, make) != 0) error.assign(errno, std::system_category());
}

void make_folders(const std::string& path, std::error_code& error) {
  const auto make = [&] {
    std::filesystem::create_directories(path, error);
    errno = error.value();
    return error ? -1 : 0;
  };
  (void)with_patience(path, make);
}

}  // namespace

// Process ids are equal in all containers.
std::string make_run_id() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  char text[32];
  std::strftime(text, sizeof(text), "%Y%m%d-%H%M%S", &local);
  char host[64] = "";
  ::gethostname(host, sizeof(host) - 1);
  for (char& c : host) {
    if (c == '/') c = '-';
  }
  std::uint32_t random = 0;
  if (::getentropy(&random, sizeof(random)) != 0) random = static_cast<std::uint32_t>(::getpid());
  return fmt::format("{}-{}-{:08x}", text, host, random);
}

LogFolder::LogFolder(const Options& options, const Placement& placement)
    : first_rank_(placement.own().first_rank),
      num_ranks_(options.num_ranks),
      is_named_(!options.log_dir.empty()),
      keep_(options.redirects.any() || options.tee.any()),
      has_logs_(keep_),
      run_id_(placement.run_id.empty() ? make_run_id() : placement.run_id) {
  std::error_code error;
  if (is_named_) {
    root_ = (std::filesystem::path(options.log_dir) / run_id_).string();
    make_folders(options.log_dir, error);
    make_folder(root_, placement.has_several_nodes(), error);
  } else {
    Descriptor lock;
    root_ = make_temporary(error, lock);
    lock_ = std::make_shared<Descriptor>(std::move(lock));
  }
  attempt_ = root_ + "/attempt_0";
  if (!error) error = make_rank_folders();
  if (error) refuse(error);
}

std::string LogFolder::begin_attempt(int number) {
  attempt_ = fmt::format("{}/attempt_{}", root_, number);
  is_first_ = false;
  if (!keep_) remove_error_files();
  const std::error_code error = make_rank_folders();
  has_logs_ = keep_ && !error;
  if (!error) return {};
  return fmt::format("cannot create folder {}: {}; attempt {} has no logs", attempt_,
                     error.message(), number);
}

// Without logs the error files lie side by side, which saves two folders per rank.
std::error_code LogFolder::make_rank_folders() const {
  std::error_code error;
  if (!keep_) return error;
  make_folders(attempt_, error);
  for (int index = 0; index < num_ranks_; ++index) {
    make_folder(rank_folder(first_rank_ + index), false, error);
  }
  return error;
}

void LogFolder::refuse(const std::error_code& error) const {
  fail_on_storage(ErrorKind::usage, error.value(),
                  fmt::format("{}: cannot create folder {}: {}; name a folder that can be written",
                              is_named_ ? "--log-dir" : "temporary files", root_, error.message()));
}

void LogFolder::remove_error_files() const noexcept {
  for (int index = 0; index < num_ranks_; ++index) {
    ::unlink(error_file(first_rank_ + index).c_str());
  }
}

std::string LogFolder::rank_folder(int rank) const { return fmt::format("{}/{}", attempt_, rank); }

std::string LogFolder::error_file(int rank) const {
  return keep_ ? rank_folder(rank) + "/error.json" : fmt::format("{}/error-{}.json", root_, rank);
}

LogFile LogFolder::create_log(int rank, const char* stream, std::string& why_not) const {
  if (!has_logs_) return {};
  LogFile file{.path = fmt::format("{}/{}.log", rank_folder(rank), stream)};
  const auto create = [&] { return file.create() ? 0 : -1; };
  // A restart needs no logs, and must not wait for each of them.
  if ((is_first_ ? with_patience(file.path, create) : create()) == 0) return file;
  const int error = errno;
  why_not = fmt::format("cannot create {}: {}", file.path, std::strerror(error));
  if (is_first_) fail_on_storage(ErrorKind::usage, error, "--log-dir: " + why_not);
  return file;
}

void LogFolder::remove_unless_kept() const noexcept {
  if (keep_) return;
  remove_error_files();
  ::rmdir(root_.c_str());
}

}  // namespace launcher
