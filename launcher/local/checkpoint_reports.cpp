#include "launcher/local/checkpoint_reports.h"

#include <fmt/format.h>

#include <cstddef>

namespace launcher {

void CommittedSteps::set(const std::string& run, std::int64_t step) {
  constexpr std::size_t kMostRuns = 1000;
  if (step < 0 || (steps_.size() == kMostRuns && !steps_.contains(run))) return;
  steps_[run] = step;
}

void CommittedSteps::update(const CommittedSteps& newer) {
  for (const auto& [run, step] : newer.steps_) set(run, step);
}

bool CommittedSteps::raise(const CommittedSteps& other) {
  bool is_raised = false;
  for (const auto& [run, step] : other.steps_) {
    const auto own = steps_.find(run);
    if (own != steps_.end() && own->second >= step) continue;
    set(run, step);
    is_raised |= steps_.contains(run);
  }
  return is_raised;
}

std::string CommittedSteps::text() const {
  std::string text;
  for (const auto& [run, step] : steps_) {
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", run, step);
  }
  return text;
}

}  // namespace launcher
