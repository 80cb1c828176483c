#include "launcher/report_file.h"

#include <fmt/format.h>

#include <cstdint>
#include <optional>

#include "dtrain/base/error_file.h"

namespace launcher {
namespace {

using dtrain::base::json_text;

template <typename T>
std::string number_or_null(const std::optional<T>& value) {
  return value ? fmt::format("{}", *value) : "null";
}

constexpr std::string_view kBegin = "{\"status\": ";

/// A step as JSON; -1 means that there is none.
std::string step_or_null(std::int64_t step) { return step < 0 ? "null" : fmt::format("{}", step); }

}  // namespace

std::string report_text(const History& history, const Placement& placement, int status,
                        const std::string& why_no_restart) {
  const AttemptEnd end = history.attempts.empty() ? AttemptEnd{} : history.attempts.back();
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
