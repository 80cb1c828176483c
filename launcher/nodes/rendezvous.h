// Connects and authenticates the launchers of a multi-node job before any rank starts.
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

/// The first bytes that node 0's launcher sends (net/handshake.h), with the protocol's version.
inline constexpr std::string_view kNodeGreeting = "dtrun/4\n";

/// The result of the rendezvous.
struct Rendezvous {
  Placement placement;
  std::shared_ptr<NodeConnections> connections;
  ReservedPort port;  // of node 0: MASTER_PORT
  dtrain::base::Descriptor
      store_listener;     // node 0: for the rendezvous of launchers, then of ranks
  PortClaim store_claim;  // of its port
  std::string token;      // shared secret of the launchers; empty: none
};

/// Waits until all launchers of the job have joined, and prints from time to time which are
/// missing. Node 0 listens. It admits launchers that know the job's secret or, without a secret,
/// this user's processes on this machine; it drops unauthenticated connections. Sets --abort-grace,
/// --stop-grace, --heartbeat-timeout and --max-restarts to node 0's values. If launchers of several
/// machines have no secret, node 0 creates one, which munge reveals to this user's processes alone.
///
/// token:    the job's secret; empty: none.
/// run_id:   node 0's, for all nodes.
/// listener: node 0's socket, if it listens already (--emulate-nodes).
/// Throws:   Error{rendezvous} naming the nodes that did not join within --rdzv-timeout;
///           Error{port} for a port that is taken; Error{usage} for launchers whose settings or
///           secrets differ.
[[nodiscard]] Rendezvous join_rendezvous(Options& options, const std::string& token,
                                         const std::string& run_id,
                                         dtrain::base::Descriptor listener);

/// Node 0's part. Private to nodes/.
[[nodiscard]] Rendezvous host_rendezvous(const Options& options, const std::string& token,
                                         const std::string& run_id,
                                         dtrain::base::Descriptor listener);

/// The shared secret of a run's ranks, derived from the launchers' secret.
/// Private to nodes/.
[[nodiscard]] std::string rank_token_of(const std::string& token, const std::string& run_id);

/// The silence limits of the other launchers after the rendezvous. Private to nodes/.
[[nodiscard]] SilenceLimits silence_limits(const Options& options);

/// The longest time for which a launcher may receive nothing during the rendezvous, in which node 0
/// sends the list of missing nodes every 2 s. Private to nodes/.
[[nodiscard]] std::chrono::milliseconds rendezvous_silence_limit(const Options& options);

/// Advice for launchers that could not be authenticated. Private to nodes/.
inline constexpr const char* kNodeSecretAdvice =
    "give every dtrun the same DTRAIN_JOB_TOKEN or DTRAIN_JOB_TOKEN_FILE";

/// Prints lines about a wait, after 2 s and then at growing intervals. Private to nodes/.
class WaitingLines {
 public:
  explicit WaitingLines(const Options& options);

  /// Prints "waiting for WHAT, 10 s of 10 min" if a line is due. Does not block on a reader.
  void show(const std::string& what);
  [[nodiscard]] const dtrain::base::Deadline& deadline() const { return deadline_; }

 private:
  std::string prefix_;
  std::string advice_;  // appended to the first line
  dtrain::base::Deadline deadline_;
  dtrain::base::ReportTimer times_;
  std::optional<OutputWriter> writer_;  // none before the first line
};

}  // namespace launcher
