// How the supervisor shows what the ranks print.
#include <fmt/format.h>

#include <chrono>
#include <optional>

#include "launcher/supervisor.h"

namespace launcher {

void Supervisor::on_output(RankStream& stream) {
  if (!stream.open() || output_held_) return;
  stream.read(console_);
  if (!stream.open()) stream.finish(console_);  // a closed descriptor has left epoll by itself
}

// Prints an error that a rank reported instead of writing it: once, however many ranks report it.
void Supervisor::show_error(Rank& rank) {
  const std::string& line = rank.told->line;
  std::optional<std::string_view> prefix = "";
  // A line that blames another rank waits for the report: that rank's own words may still come.
  if (rank.told->blames_another()) prefix.reset();
  for (const Rank& other : own_ranks()) {
    if (&other == &rank || !other.told || other.told->blames_another() || !prefix) continue;
    if (same_error(other, rank)) {
      prefix.reset();
    } else {
      prefix = rank.error.prefix();
    }
  }
  if (prefix && !has_begun(ranks_)) {
    if (start_errors_.empty()) start_error_time_ = dtrain::base::Clock::now();
    start_errors_.emplace_back(*prefix, line);
    prefix.reset();
  }
  rank.error.insert(console_, line, prefix);
}

void Supervisor::show_start_errors() {
  for (const auto& [prefix, line] : start_errors_) console_.line(Stream::error, prefix, line);
  start_errors_.clear();
}

// A script may do something else after an error: that did not end the start.
void Supervisor::look_at_start_errors() {
  constexpr std::chrono::seconds kTimeToEnd(2);
  if (start_errors_.empty() || phase_ != Phase::running) return;
  const auto waited = dtrain::base::Clock::now() - start_error_time_;
  if (waited >= kTimeToEnd || has_begun(ranks_)) show_start_errors();
}

void Supervisor::on_resize() {
  console_.redraw();
  const int columns = ranks_.front().error.columns_within(console_.columns());
  tell(ranks_.front(), fmt::format("columns {}\n", columns));
}

void Supervisor::warn_of_logs() {
  for (const std::string& text : logs_.take_warnings()) warn(text);
}

}  // namespace launcher
