#include "launcher/judge/restarts.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "dtrain/base/error.h"
#include "dtrain/base/text/text.h"
#include "launcher/local/processes.h"

namespace launcher {
namespace {

using Seconds = std::chrono::duration<double>;
using dtrain::base::json_text;
using dtrain::base::readable_time;

constexpr int kMaxWithoutCheckpoint = 3;
constexpr std::chrono::duration<double> kLongestWait{60};

/// Errors of the command line, the configuration, the data, or the program's name.
bool is_permanent(int status) {
  using dtrain::base::ErrorKind;
  constexpr ErrorKind kKinds[] = {ErrorKind::usage, ErrorKind::data, ErrorKind::spawn};
  return std::ranges::any_of(kKinds,
                             [&](ErrorKind kind) { return static_cast<int>(kind) == status; });
}

/// Storage errors: a mount or server may return, however long that takes.
bool is_transient(int status) {
  return status == static_cast<int>(dtrain::base::ErrorKind::checkpoint);
}

constexpr std::size_t kShown = 20;  // attempts in the report

std::string at_step(const AttemptResult& end) {
  return end.step >= 0 ? fmt::format(" at step {}", end.step) : std::string();
}

std::string attempt_line(std::size_t number, const AttemptResult& end) {
  std::string text = fmt::format("  attempt {}: {} after {}{}", number, end.how,
                                 readable_time(end.duration.count()), at_step(end));
  if (end.recovery) text += fmt::format("; recovered in {}", readable_time(end.recovery->count()));
  if (end.checkpoint.step >= 0) {
    text += fmt::format("; newest reported checkpoint of step {}", end.checkpoint.step);
  }
  return text;
}

/// Empty if the program reports no steps.
std::string measures(const History& history) {
  std::vector<Seconds> recoveries;
  for (const AttemptResult& end : history.attempts) {
    if (end.recovery) recoveries.push_back(*end.recovery);
  }
  std::string text;
  if (!recoveries.empty()) {
    Seconds sum{0};
    for (const Seconds& recovery : recoveries) sum += recovery;
    text = fmt::format("recovery time {} on average, {} at most; ",
                       readable_time(sum.count() / static_cast<double>(recoveries.size())),
                       readable_time(std::ranges::max(recoveries).count()));
  }
  if (history.useful.count() <= 0) return {};
  return text + fmt::format("effective training time {:.1f}% of {}",
                            100 * history.useful / history.wall,
                            readable_time(history.wall.count()));
}

template <typename T>
std::string number_or_null(const std::optional<T>& value) {
  return value ? fmt::format("{}", *value) : "null";
}

constexpr std::string_view kBegin = "{\"status\": ";

/// A step as JSON; -1 means that there is none.
std::string step_or_null(std::int64_t step) { return step < 0 ? "null" : fmt::format("{}", step); }

}  // namespace

RestartDecision RestartPolicy::decide(const AttemptResult& end) {
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
  if (!is_transient(end.status)) ++without_checkpoint_;
  return {.restarts = true, .wait = wait};
}

RestartDecision RestartPolicy::stopped_by(int signal) {
  --restarts_;
  return interrupted(signal);
}

RestartDecision RestartPolicy::withdraw(std::string why_not) {
  --restarts_;
  return {.why_not = std::move(why_not)};
}

RestartDecision RestartPolicy::interrupted(int signal) const {
  const bool kills = signal == SIGQUIT || signal == SIGKILL;
  return {.why_not = fmt::format("{} asked the job to stop", signal_name(signal)),
          .interrupted_by = committed_ >= 0 && !kills ? signal : 0};
}

void RestartPolicy::note_progress(const AttemptResult& end) {
  is_reporting_ |= end.is_reporting;
  if (end.checkpoint.step >= 0) committed_ = end.checkpoint.step;
  last_.update(end.committed_steps);
  if (!highest_.raise(end.committed_steps)) return;
  in_a_row_ = 0;
  without_checkpoint_ = 0;
}

std::string RestartPolicy::reason_against(const AttemptResult& end) const {
  if (end.is_left_behind) return "a process of the job cannot be killed";
  if (end.has_lost_node) return "the job has fewer nodes now";
  if (is_permanent(end.status)) {
    return fmt::format("a restart cannot fix an error of status {}", end.status);
  }
  if (restarts_ == options_.max_restarts) {
    return restarts_ == 1 ? "the only restart is used up"
                          : fmt::format("all {} restarts are used up", restarts_);
  }
  if (is_reporting_ && without_checkpoint_ >= kMaxWithoutCheckpoint && !is_transient(end.status)) {
    return fmt::format("{} restarts in a row brought no newer checkpoint", without_checkpoint_);
  }
  return {};
}

std::string restart_line(const AttemptResult& end, const RestartDecision& decision,
                         const RestartPolicy& policy, int max_restarts) {
  std::string text = fmt::format("restart {} of {} in {}: {}{}", policy.restarts(), max_restarts,
                                 readable_time(decision.wait.count()), end.how, at_step(end));
  if (policy.committed() >= 0) {
    text += fmt::format("; the newest reported checkpoint is of step {}", policy.committed());
  } else if (end.is_reporting) {
    text += "; no checkpoint was reported yet";
  }
  return text;
}

std::vector<std::string> history_lines(const History& history) {
  if (history.attempts.size() < 2) return {};
  const std::size_t count = history.attempts.size();
  const std::size_t first = count > kShown ? count - kShown : 0;
  std::vector<std::string> lines{
      fmt::format("{} attempts{}", count, first > 0 ? fmt::format(", the last {}:", kShown) : ":")};
  for (std::size_t i = first; i < count; ++i) {
    lines.push_back(attempt_line(i, history.attempts[i]));
  }
  if (std::string text = measures(history); !text.empty()) lines.push_back(std::move(text));
  return lines;
}

ReportedCheckpoint newest_checkpoint(const History& history) {
  for (auto end = history.attempts.rbegin(); end != history.attempts.rend(); ++end) {
    if (end->checkpoint.step >= 0) return end->checkpoint;
  }
  return {};
}

std::string no_restart_line(const History& history, const std::string& why) {
  if (history.attempts.size() < 2) return "not started again: " + why;
  return fmt::format("failed, and not started again: {}; {}", why, history.attempts.back().how);
}

std::string report_text(const History& history, const Placement& placement, int status,
                        const std::string& why_no_restart) {
  const AttemptResult end = history.attempts.empty() ? AttemptResult{} : history.attempts.back();
  const ReportedCheckpoint checkpoint = newest_checkpoint(history);
  std::string host = "null";
  if (end.node) {
    host = json_text(placement.has_several_nodes() ? placement.node(*end.node).host : host_name());
  }
  return fmt::format(
      "{}{}, \"failed\": {}, \"reason\": {}, \"culprit\": {}, \"node\": {}, "
      "\"host\": {}, \"step\": {}, \"checkpoint\": {}, \"resume\": {}, \"attempts\": {}, "
      "\"seconds\": {:.3f}, \"not_started_again\": {}}}\n",
      kBegin, status, end.has_failed, json_text(end.how), number_or_null(end.culprit),
      number_or_null(end.node), host, step_or_null(end.step), step_or_null(checkpoint.step),
      json_text(checkpoint.resume_advice), history.attempts.size(), history.wall.count(),
      json_text(why_no_restart));
}

bool is_report_or_empty(std::string_view begin) {
  return begin.empty() || begin.starts_with(kBegin);
}

}  // namespace launcher
