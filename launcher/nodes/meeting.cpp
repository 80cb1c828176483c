#include "launcher/nodes/meeting.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "dtrain/base/text.h"
#include "dtrain/net/message.h"
#include "dtrain/net/proof.h"
#include "launcher/output_writer.h"

namespace launcher {
namespace {

// Advice for a shell in one of several tasks, where no other task starts a dtrun.
std::string advice_on_waiting(const Options& options) {
  if (!options.follows_slurm) return {};
  return fmt::format(
      "; srun must start a dtrun on each of the {} nodes of its step: for a job on this one alone, "
      "as in a shell of srun --pty, give dtrun --standalone",
      options.num_nodes);
}

}  // namespace

Meeting meet(Options& options, const std::string& token, const std::string& run_id,
             dtrain::base::Descriptor listener) {
  Meeting meeting = options.node_rank == 0
                        ? host_meeting(options, token, run_id, std::move(listener))
                        : join_meeting(options, token);
  Placement& placement = meeting.placement;
  placement.node_rank = options.node_rank;
  if (!meeting.token.empty()) {
    placement.rank_token = rank_token_of(meeting.token, placement.run_id);
  }
  return meeting;
}

std::string rank_token_of(const std::string& token, const std::string& run_id) {
  using dtrain::net::MessageWriter;
  const std::string bytes = dtrain::net::hmac_sha256(
      token, MessageWriter().text(kNodeGreeting).text("ranks").text(run_id).bytes());
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
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
      advice_(advice_on_waiting(options)),
      deadline_(std::chrono::duration_cast<std::chrono::milliseconds>(options.rdzv_timeout)) {}

void WaitingLines::show(const std::string& what) {
  if (!times_.take()) return;
  write_error_for_a_while(fmt::format(
      "{}waiting for {}, {} of {}{}\n", prefix_, what, dtrain::base::readable_time(times_.waited()),
      dtrain::base::readable_time(dtrain::base::Seconds(deadline_.limit()).count()),
      std::exchange(advice_, "")));
}

}  // namespace launcher
