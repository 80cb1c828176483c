// The meeting of the launchers of a job, before any rank starts.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/base/clock.h"
#include "dtrain/base/io/descriptor.h"
#include "dtrain/base/log.h"
#include "launcher/local/port.h"
#include "launcher/nodes/node_connections.h"
#include "launcher/nodes/placement.h"
#include "launcher/options.h"
#include "launcher/output/output_writer.h"

namespace launcher {

/// The first bytes that node 0's launcher sends (net/handshake.h); the number is the protocol's.
inline constexpr std::string_view kNodeGreeting = "dtrun/4\n";

/// What a launcher has once all have come.
struct Meeting {
  Placement placement;
  std::shared_ptr<NodeConnections> channel;
  ReservedPort port;                        // of node 0: MASTER_PORT
  dtrain::base::Descriptor store_listener;  // of node 0: where all met, and where the ranks meet
  PortClaim store_claim;                    // of its port
  std::string token;  // the secret by which the launchers know each other; empty: none
};

/// Waits until all launchers of the job have come, and prints now and then who is missing.
/// Node 0 listens; it takes in who proves to know the job's secret or, where it has none, this
/// user's processes on this machine. Strangers have no effect. Takes over node 0's values of
/// --abort-grace, --stop-grace, --heartbeat-timeout and --max-restarts. Where launchers of several
/// machines have no secret, node 0 makes one, which munge shows to this user's processes alone.
///
/// token:    the job's secret; empty: none.
/// run_id:   node 0's, for all nodes.
/// listener: of node 0, if it listens already (--emulate-nodes).
/// Throws:   Error{rendezvous} naming who did not come within --rdzv-timeout; Error{port} for a
///           port that is taken; Error{usage} for launchers that contradict each other, or whose
///           secrets differ.
[[nodiscard]] Meeting meet(Options& options, const std::string& token, const std::string& run_id,
                           dtrain::base::Descriptor listener);

/// Node 0's part. Private to nodes/.
[[nodiscard]] Meeting host_meeting(const Options& options, const std::string& token,
                                   const std::string& run_id, dtrain::base::Descriptor listener);

/// The secret by which the ranks of a run know each other, which follows from one of the launchers.
/// Private to nodes/.
[[nodiscard]] std::string rank_token_of(const std::string& token, const std::string& run_id);

/// How long the others may be silent once they have come. Private to nodes/.
[[nodiscard]] SilenceLimits silence_limits(const Options& options);

/// How long launchers that meet may hear nothing of each other: node 0 says every 2 s who is
/// missing. Private to nodes/.
[[nodiscard]] std::chrono::milliseconds meeting_silence_limit(const Options& options);

/// What the launchers lack that could not be let in. Private to nodes/.
inline constexpr const char* kNodeSecretAdvice =
    "give every dtrun the same DTRAIN_JOB_TOKEN or DTRAIN_JOB_TOKEN_FILE";

/// Prints lines on a wait, after 2 s and then ever more rarely. Private to nodes/.
class WaitingLines {
 public:
  explicit WaitingLines(const Options& options);

  /// Prints "waiting for WHAT, 10 s of 10 min" if it is time for a line. Waits for no reader.
  void show(const std::string& what);
  [[nodiscard]] const dtrain::base::Deadline& deadline() const { return deadline_; }

 private:
  std::string prefix_;
  std::string advice_;  // appended to the first line
  dtrain::base::Deadline deadline_;
  dtrain::base::WaitingTimes times_;
  std::optional<OutputWriter> writer_;  // none before the first line
};

}  // namespace launcher
