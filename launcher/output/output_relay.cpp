#include "launcher/output/output_relay.h"

#include <fmt/format.h>

#include <cstddef>
#include <limits>
#include <optional>
#include <utility>

#include "launcher/output/report.h"

namespace launcher {

OutputRelay::OutputRelay(const Options& options, std::string log_folder)
    : options_(options),
      log_folder_(std::move(log_folder)),
      console_(own_prefix(options), options.emulate_nodes > 0 ? Pieces::atomic : Pieces::large),
      logs_(console_.waker(), options.log_size_limit) {}

void OutputRelay::warn_of_logs() {
  for (const std::string& text : logs_.take_warnings()) warn(text);
}

void OutputRelay::read(RankStream& stream) {
  if (!stream.open() || back_pressure_) return;
  stream.read(console_);
  if (!stream.open()) stream.finish(console_);  // a closed descriptor has left epoll by itself
}

void OutputRelay::show_reported_error(Rank& rank, std::span<const Rank> own, bool has_begun) {
  const std::string& line = rank.reported_error->line;
  std::optional<std::string_view> prefix = "";
  // Holds back a line that blames another rank until the report: that rank's own error may still
  // arrive.
  if (rank.reported_error->blames_another()) prefix.reset();
  for (const Rank& other : own) {
    if (&other == &rank || !other.reported_error || other.reported_error->blames_another() ||
        !prefix)
      continue;
    if (same_error(other, rank)) {
      prefix.reset();
    } else {
      prefix = rank.error.prefix();
    }
  }
  if (prefix && !has_begun) {
    if (startup_errors_.empty()) startup_error_time_ = dtrain::base::Clock::now();
    startup_errors_.emplace_back(*prefix, line);
    prefix.reset();
  }
  rank.error.insert(console_, line, prefix);
}

void OutputRelay::show_startup_errors() {
  for (const auto& [prefix, line] : startup_errors_) console_.line(Stream::error, prefix, line);
  startup_errors_.clear();
}

void OutputRelay::show_old_startup_errors(bool has_begun) {
  constexpr std::chrono::seconds kTimeToEnd(2);
  const auto waited = dtrain::base::Clock::now() - startup_error_time_;
  if (waited >= kTimeToEnd || has_begun) show_startup_errors();
}

bool OutputRelay::update_back_pressure(bool job_ends) {
  constexpr std::size_t kMaxPending = std::size_t{1} << 20;
  // Ending ranks may print much at once, and a healthy disk must lose none of it.
  constexpr std::size_t kMaxPendingLogsAtEnd = std::size_t{64} << 20;
  if (job_ends) {
    console_.drop_beyond(kMaxPending);
    logs_.drop_beyond(kMaxPendingLogsAtEnd);
  }
  const bool too_much =
      console_.pending_for_readers() > kMaxPending || logs_.waiting() > kMaxPending;
  const bool was_held = std::exchange(back_pressure_, !job_ends && too_much);
  return was_held != back_pressure_;
}

void OutputRelay::finish(std::span<Rank> ranks) {
  for (Rank& rank : ranks) {
    rank.output.finish(console_);
    rank.error.finish(console_);
  }
  console_.commit_live("");
  show_startup_errors();
  logs_.finish();
}

// The report follows the warnings: its last line says why the job ended.
void OutputRelay::print_report(const Verdict& verdict, const std::vector<Rank>& ranks,
                               const Placement& placement) {
  const bool written = logs_.idle();
  console_.drop_beyond(std::numeric_limits<std::size_t>::max());  // no line of dtrun's is dropped
  warn_of_logs();
  if (!written) {
    warn(fmt::format("the disk of the logs in {} did not respond: the logs may lack up to {} bytes",
                     log_folder_, logs_.missing()));
  }
  report(verdict, ranks, placement, options_.max_restarts > 0, console_);
}

}  // namespace launcher
