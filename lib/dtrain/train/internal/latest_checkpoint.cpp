#include "dtrain/train/internal/latest_checkpoint.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

namespace dtrain::train {

LatestCheckpoint::LatestCheckpoint(base::LauncherLink& link, const Options& options)
    : link_(link),
      options_(options),
      step_(options.saved_step),
      path_(options.saved_path),
      is_own_(options.saved_step >= 0) {}

void LatestCheckpoint::set(std::int64_t step, const std::string& path) {
  step_ = step;
  path_ = path;
  is_own_ = true;
}

void LatestCheckpoint::notify_launcher() {
  if (is_own_) send(how_to_continue());
}

// The launcher's advice was true when the checkpoint was saved.
void LatestCheckpoint::notify_failure() {
  if (is_own_ && how_to_continue().empty()) send({});
}

void LatestCheckpoint::send(const std::string& advice) {
  if (options_.is_leader) link_.committed(step_, options_.run_name, advice);
}

std::string LatestCheckpoint::how_to_continue() const {
  if (!is_own_) return {};
  std::error_code error;  // the run folder may have been moved or removed meanwhile
  if (std::filesystem::status(path_, error).type() == std::filesystem::file_type::not_found) {
    return {};
  }
  return fmt::format("the newest checkpoint is {}: to continue, rerun with {}", path_,
                     options_.resume_flags);
}

}  // namespace dtrain::train
