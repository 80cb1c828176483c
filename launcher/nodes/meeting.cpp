#include "launcher/nodes/meeting.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "dtrain/base/readable.h"
#include "launcher/nodes/handshake.h"

namespace launcher {
namespace {

using namespace std::chrono_literals;
using dtrain::base::Clock;

constexpr std::chrono::seconds kFirstInterval = 2s;
constexpr std::chrono::seconds kLongestInterval = 32s;

}  // namespace

Meeting meet(Options& options, const std::string& token, const std::string& run_id,
             dtrain::base::Descriptor listener) {
  Meeting meeting = options.node_rank == 0
                        ? host_meeting(options, token, run_id, std::move(listener))
                        : join_meeting(options, token);
  Placement& placement = meeting.placement;
  placement.node_rank = options.node_rank;
  if (!meeting.token.empty()) {
    placement.rank_token = derived_rank_token(meeting.token, placement.run_id);
  }
  return meeting;
}

SilenceLimits silence_limits(const Options& options) {
  return {.running = options.heartbeat_timeout,
          .starting = std::max(options.heartbeat_timeout, options.rdzv_timeout)};
}

std::chrono::milliseconds meeting_silence_limit(const Options& options) {
  constexpr std::chrono::duration<double> kLeast{5.0};
  return std::chrono::duration_cast<std::chrono::milliseconds>(
      std::max(kLeast, options.heartbeat_timeout));
}

WaitingLines::WaitingLines(const Options& options)
    : prefix_(own_prefix(options)),
      deadline_(std::chrono::duration_cast<std::chrono::milliseconds>(options.rdzv_timeout)),
      start_(Clock::now()),
      interval_(kFirstInterval),
      next_(start_ + interval_) {}

void WaitingLines::show(const std::string& what) {
  if (Clock::now() < next_) return;
  interval_ = std::min(2 * interval_, kLongestInterval);
  next_ = Clock::now() + interval_;
  if (!writer_) {
    wake_ = dtrain::base::Descriptor(::eventfd(0, EFD_CLOEXEC));
    writer_.emplace(STDERR_FILENO, wake_.get(), Pieces::atomic);
  }
  writer_->write(
      fmt::format("{}waiting for {}, {} of {}\n", prefix_, what,
                  dtrain::base::readable_time(dtrain::base::seconds_since(start_)),
                  dtrain::base::readable_time(dtrain::base::Seconds(deadline_.limit()).count())));
}

}  // namespace launcher
