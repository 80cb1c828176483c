#include "dtrain/base/activity.h"

#include <fmt/format.h>

#include <utility>

namespace dtrain::base {

void Activity::set_call_report(std::function<std::string()> calls) {
  const std::lock_guard lock(calls_mutex_);
  calls_ = std::move(calls);
}

bool Activity::has_advanced() noexcept {
  const std::uint64_t count = count_;
  return std::exchange(reported_count_, count) != count || long_phase_ != nullptr;
}

std::string Activity::describe() const {
  const std::int64_t block = block_.load(std::memory_order_relaxed);
  const std::int64_t step = step_.load(std::memory_order_relaxed);
  if (const char* phase = long_phase_.load(std::memory_order_relaxed)) {
    return fmt::format("in {} after step {}", phase, step);
  }
  return fmt::format("in {}{} of step {}", phase_.load(std::memory_order_relaxed),
                     block < 0 ? std::string() : fmt::format(", block {},", block), step + 1);
}

std::string Activity::call_report() const {
  const std::lock_guard lock(calls_mutex_);
  return calls_ ? calls_() : std::string();
}

}  // namespace dtrain::base
