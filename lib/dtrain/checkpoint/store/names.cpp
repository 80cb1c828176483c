#include "dtrain/checkpoint/store/names.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <functional>
#include <system_error>

#include "dtrain/base/error.h"
#include "dtrain/base/path_kind.h"
#include "dtrain/base/storage_error.h"

namespace dtrain::checkpoint::store {
namespace {

constexpr std::string_view kPrefix = "step-";
// Nanoseconds since 1970 have 16 digits until the year 2554; on a machine that has lost its clock
// fewer, but 12 after three days.
constexpr std::size_t kLeastTimeDigits = 12;

}  // namespace

std::string checkpoints_folder(const std::string& run_dir) { return run_dir + "/checkpoints"; }

std::string checkpoint_name(std::int64_t step) { return fmt::format("{}{}", kPrefix, step); }

std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::int64_t step = -1;
  std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), step);
  // Each step has one spelling: no sign, no leading zeros, no suffix.
  if (step < 0 || checkpoint_name(step) != name) return std::nullopt;
  return step;
}

std::string new_start_id() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return fmt::format("{:x}-{}", std::chrono::duration_cast<std::chrono::nanoseconds>(now).count(),
                     ::getpid());
}

bool is_start_id(std::string_view text) {
  const auto dash = text.find('-');
  if (dash == std::string_view::npos || dash < kLeastTimeDigits) return false;
  const std::string_view time = text.substr(0, dash);
  const std::string_view process = text.substr(dash + 1);
  return time.find_first_not_of("0123456789abcdef") == std::string_view::npos && !process.empty() &&
         process.find_first_not_of("0123456789") == std::string_view::npos;
}

std::string temporary_folder(const std::string& checkpoints, std::int64_t step,
                             std::string_view run) {
  return fmt::format("{}/{}.tmp-{}", checkpoints, checkpoint_name(step), run);
}

std::vector<std::int64_t> list_steps(const std::string& checkpoints) {
  std::error_code error;
  std::vector<std::int64_t> steps;
  for (const std::string& name : base::names_in(checkpoints, error)) {
    if (const auto step = step_of(name)) steps.push_back(*step);
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    base::fail_on_storage(
        base::ErrorKind::checkpoint, error.value(),
        fmt::format("folder '{}' cannot be read: {}", checkpoints, error.message()));
  }
  std::sort(steps.begin(), steps.end(), std::greater<>());
  return steps;
}

}  // namespace dtrain::checkpoint::store
