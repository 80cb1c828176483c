#include "launcher/option_values.h"

#include <map>
#include <optional>
#include <utility>

#include "dtrain/base/rank_env.h"
#include "dtrain/base/units.h"
#include "launcher/environment.h"

namespace launcher {
namespace {

using dtrain::base::ErrorKind;
using dtrain::base::fail;

/// As dtrain reads times: a number of seconds ("1e3"), or a duration.
std::optional<double> seconds_in(std::string_view value) {
  if (const auto seconds = dtrain::base::number_in<double>(value)) return seconds;
  return dtrain::base::seconds_in(value);
}

}  // namespace

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

int num_ranks_from(std::string_view name, std::string_view value) {
  const int gpus = value == "auto" || value == "gpu" ? count_gpus() : 0;
  if (value == "cpu" || (value == "auto" && gpus == 0)) {
    return static_cast<int>(dtrain::base::usable_cores());
  }
  if (value == "auto") return gpus;
  if (value == "gpu") {
    if (gpus == 0) fail(ErrorKind::usage, "{} gpu: no GPU found; give a number, or cpu", name);
    return gpus;
  }
  if (value.empty() || value.find_first_not_of("0123456789") != std::string_view::npos) {
    fail(ErrorKind::usage, "{}: found '{}'; give a number of ranks, auto, gpu or cpu", name, value);
  }
  return number_in<int>(name, value, 1, kMaxRanks);
}

StreamChoice streams_from(std::string_view name, std::string_view value) {
  if (value.find(':') == std::string_view::npos) {
    return StreamChoice(number_in<int>(name, value, 0, 3));
  }
  std::map<int, int> per_rank;
  for (const std::string_view part : split(value, ',')) {
    const auto colon = part.find(':');
    if (colon == std::string_view::npos) {
      fail(ErrorKind::usage, "{}: found '{}'; give 0 to 3, or RANK:0-3 pairs such as 0:3,1:1", name,
           value);
    }
    per_rank[number_in<int>(name, part.substr(0, colon), 0, kMaxRanks - 1)] =
        number_in<int>(name, part.substr(colon + 1), 0, 3);
  }
  return StreamChoice(std::move(per_rank));
}

Bind bind_from(std::string_view name, std::string_view value) {
  if (value == "none") return Bind::none;
  if (value == "cores") return Bind::cores;
  if (value == "numa") return Bind::numa;
  fail(ErrorKind::usage, "{}: found '{}'; give none, cores or numa", name, value);
}

int num_nodes_from(std::string_view name, std::string_view value) {
  const auto colon = value.find(':');
  const int count = number_in<int>(name, value.substr(0, colon), 1, kMaxNodes);
  if (colon != std::string_view::npos && value.substr(0, colon) != value.substr(colon + 1)) {
    fail(ErrorKind::usage, "{}: found '{}', but the number of nodes is fixed: give one number",
         name, value);
  }
  return count;
}

std::int64_t size_from(std::string_view name, std::string_view value) {
  const auto bytes = dtrain::base::bytes_in(value);
  if (!bytes) {
    fail(ErrorKind::usage, "{}: found '{}'; give a size such as 64MiB, or 0 for none", name, value);
  }
  return *bytes;
}

std::chrono::duration<double> seconds_from(std::string_view name, std::string_view value,
                                           double low) {
  constexpr double kMaxSeconds = 86400.0;
  const auto seconds = seconds_in(value);
  if (!seconds || !(*seconds >= low && *seconds <= kMaxSeconds)) {
    fail(ErrorKind::usage, "{}: found '{}'; give {}, from {} to {} s", name, value,
         dtrain::base::kDurationForms, low, kMaxSeconds);
  }
  return std::chrono::duration<double>(*seconds);
}

std::chrono::duration<double> hang_timeout_from(std::string_view name, std::string_view value) {
  const auto seconds = seconds_in(value);
  if (seconds && *seconds == 0.0) return std::chrono::duration<double>(0);
  if (!seconds || *seconds < kLeastTimeout) {
    fail(ErrorKind::usage, "{}: found '{}'; give 0 (never), or at least {} seconds (90s, 10m)",
         name, value, kLeastTimeout);
  }
  return seconds_from(name, value, kLeastTimeout);
}

}  // namespace launcher
