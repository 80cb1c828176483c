#include "dtrain/config/changed_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "dtrain/config/assign.h"

namespace dtrain::config {
namespace {

constexpr std::size_t kShown = 24;
constexpr std::string_view kOfEveryRun[] = {"data.train", "data.validation", "run.dir",
                                            "run.overwrite", "checkpoint.resume"};

}  // namespace

std::string changed_settings(const Config& asked) {
  const auto now = value_texts(Command::train, asked);
  const auto plain = value_texts(Command::train, Config{});
  std::vector<std::string> changed;
  for (std::size_t i = 0; i < now.size(); ++i) {
    const auto& [key, value] = now[i];
    if (value == plain[i].second || std::ranges::find(kOfEveryRun, key) != std::end(kOfEveryRun)) {
      continue;
    }
    changed.push_back(fmt::format("{}={}", key, value));
  }
  if (changed.size() <= kShown) return fmt::format("{}", fmt::join(changed, " "));
  const std::size_t rest = changed.size() - kShown;
  changed.resize(kShown);
  return fmt::format("{} and {} more", fmt::join(changed, " "), rest);
}

}  // namespace dtrain::config
