#include "launcher/run_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "dtrain/base/error.h"

namespace launcher {
namespace {

using dtrain::base::ErrorKind;
using dtrain::base::fail;

std::string make_run_id() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  char text[32];
  std::strftime(text, sizeof(text), "%Y%m%d-%H%M%S", &local);
  return fmt::format("{}-{}", text, ::getpid());
}

}  // namespace

RunFolder::RunFolder(const Options& options)
    : num_ranks_(options.num_ranks),
      keep_(options.redirects.any() || options.tee.any()),
      run_id_(make_run_id()) {
  const bool named = !options.log_dir.empty();
  std::error_code error;
  if (named) {
    root_ = (std::filesystem::path(options.log_dir) / run_id_).string();
    std::filesystem::create_directories(options.log_dir, error);
    if (::mkdir(root_.c_str(), 0777) != 0 && !error) error.assign(errno, std::system_category());
  } else {
    root_ = (std::filesystem::temp_directory_path(error) / "dtrun-XXXXXX").string();
    if (::mkdtemp(root_.data()) == nullptr) error.assign(errno, std::system_category());
  }
  attempt_ = root_ + "/attempt_0";
  // Without logs the error files lie side by side: two folders fewer for each rank.
  if (!error && keep_) ::mkdir(attempt_.c_str(), 0777);
  for (int rank = 0; rank < num_ranks_ && keep_ && !error; ++rank) {
    if (::mkdir(rank_folder(rank).c_str(), 0777) != 0) error.assign(errno, std::system_category());
  }
  if (error) {
    fail(ErrorKind::usage, "{}: cannot create folder {}: {}; name a folder that can be written",
         named ? "--log-dir" : "temporary files", root_, error.message());
  }
}

std::string RunFolder::rank_folder(int rank) const { return fmt::format("{}/{}", attempt_, rank); }

std::string RunFolder::error_file(int rank) const {
  return keep_ ? rank_folder(rank) + "/error.json" : fmt::format("{}/error-{}.json", root_, rank);
}

Descriptor RunFolder::create_log(int rank, const char* stream) const {
  const std::string path = fmt::format("{}/{}.log", rank_folder(rank), stream);
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_APPEND, 0666));
  if (!file) {
    fail(ErrorKind::usage, "--log-dir: cannot create {}: {}", path, std::strerror(errno));
  }
  return file;
}

void RunFolder::remove_unless_kept() const noexcept {
  if (keep_) return;
  for (int rank = 0; rank < num_ranks_; ++rank) ::unlink(error_file(rank).c_str());
  ::rmdir(root_.c_str());
}

}  // namespace launcher
