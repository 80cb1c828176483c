#include "launcher/restart_policy.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cmath>

#include "dtrain/base/error.h"
#include "launcher/processes.h"

namespace launcher {
namespace {

constexpr int kMaxFruitless = 3;
constexpr std::chrono::duration<double> kLongestWait{60};

/// Errors of the command line, the configuration, the data, or the program's name.
bool comes_again(int status) {
  using dtrain::base::ErrorKind;
  constexpr ErrorKind kKinds[] = {ErrorKind::usage, ErrorKind::data, ErrorKind::spawn};
  return std::ranges::any_of(kKinds,
                             [&](ErrorKind kind) { return static_cast<int>(kind) == status; });
}

/// Errors of the storage: a mount or a server may come back, however long that takes.
bool may_pass(int status) {
  return status == static_cast<int>(dtrain::base::ErrorKind::checkpoint);
}

}  // namespace

RestartDecision RestartPolicy::after(const AttemptEnd& end) {
  if (!end.has_failed || options_.max_restarts == 0) return {};
  note_progress(end);
  if (std::string why_not = reason_against(end); !why_not.empty()) {
    return {.why_not = std::move(why_not)};
  }
  if (end.request != 0) return interrupted(end.request);
  const auto longest = std::max(kLongestWait, options_.backoff);
  const auto wait = std::min(longest, options_.backoff * std::exp2(std::min(in_a_row_, 30)));
  ++restarts_;
  ++in_a_row_;
  if (!may_pass(end.status)) ++fruitless_;
  return {.restarts = true, .wait = wait};
}

RestartDecision RestartPolicy::stopped_by(int signal) {
  --restarts_;
  return interrupted(signal);
}

RestartDecision RestartPolicy::taken_back(std::string why_not) {
  --restarts_;
  return {.why_not = std::move(why_not)};
}

RestartDecision RestartPolicy::interrupted(int signal) const {
  const bool kills = signal == SIGQUIT || signal == SIGKILL;
  return {.why_not = fmt::format("{} asked the job to stop", signal_name(signal)),
          .interrupted_by = committed_ >= 0 && !kills ? signal : 0};
}

void RestartPolicy::note_progress(const AttemptEnd& end) {
  is_reporting_ |= end.is_reporting;
  if (end.checkpoint.step >= 0) committed_ = end.checkpoint.step;
  last_.update(end.committed_steps);
  if (!highest_.raise(end.committed_steps)) return;
  in_a_row_ = 0;
  fruitless_ = 0;
}

std::string RestartPolicy::reason_against(const AttemptEnd& end) const {
  if (end.is_left_behind) return "a process of the job cannot be killed";
  if (end.has_lost_node) return "the job has fewer nodes now";
  if (comes_again(end.status)) {
    return fmt::format("a restart cannot fix an error of status {}", end.status);
  }
  if (restarts_ == options_.max_restarts) {
    return restarts_ == 1 ? "the one restart is used up"
                          : fmt::format("all {} restarts are used up", restarts_);
  }
  if (is_reporting_ && fruitless_ >= kMaxFruitless && !may_pass(end.status)) {
    return fmt::format("{} restarts in a row brought no newer checkpoint", fruitless_);
  }
  return {};
}

}  // namespace launcher
