#include "dtrain/report/run_state.h"

#include <fmt/format.h>

#include <string_view>

namespace dtrain::report {
namespace {

// The last event of this name, unless a start follows it: an ended run may have been restarted.
const Json* since_start(const RunRecord& run, std::string_view name) {
  const auto found = run.events_named(name);
  const auto starts = run.events_named("start");
  // In the order of the file.
  const bool is_last = !found.empty() && (starts.empty() || starts.back() < found.back());
  return is_last ? found.back() : nullptr;
}

std::string text_at(const Json& event, const char* key) {
  const auto found = event.find(key);
  return found != event.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace

RunState state_of(const RunRecord& run) {
  const std::int64_t last = run.last_step();
  if (const Json* end = since_start(run, "end"); end && end->value("step", Json()) == last) {
    const std::string reason = text_at(*end, "reason");
    return {"finished", reason.empty() ? "finished" : "finished: " + reason};
  }
  if (run.is_held.value_or(false)) return {"running", fmt::format("running, at step {}", last)};
  if (run.wants_requeue) {
    return {"stopped", fmt::format("stopped after step {}, and saved", last)};
  }
  if (const Json* failure = since_start(run, "failure")) {
    const std::string message = text_at(*failure, "message");
    return {"failed", "failed: " + message.substr(0, message.find('\n'))};
  }
  if (run.is_held)
    return {"dead", fmt::format("dead: its process disappeared after step {}", last)};
  return {"unknown", fmt::format("at step {}: running or failed", last)};
}

}  // namespace dtrain::report
