// Defines, encodes and decodes the messages that the launchers of a job exchange.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/local/rank.h"
#include "launcher/nodes/placement.h"

namespace launcher {

/// Kinds of messages; a launcher ignores a kind that it does not know.
enum class NodeMessage : std::uint64_t {
  ping = 1,          ///< node 0 to each: a heartbeat
  pong = 2,          ///< the answer
  waiting = 3,       ///< node 0, before the start: the missing nodes
  refused = 4,       ///< node 0, before the start: the job cannot start
  start = 5,         ///< node 0: JobStart
  rank_end = 16,     ///< to node 0: RankReport of a rank that has ended or was stopped
  progress = 17,     ///< to node 0: a rank's heartbeat: its step, microseconds it waited
  node_done = 18,    ///< to node 0: all ranks of a node have ended
  node_failed = 19,  ///< to node 0: a node could not start its ranks; status and why
  records = 27,      ///< to node 0: a rank's position and open collectives
  held = 29,         ///< to node 0: output back-pressure holds up ranks, or has ended
  ask = 28,          ///< node 0: request for `records` of all ranks
  abort = 20,        ///< node 0: AbortOrder
  leaving = 21,      ///< node 0: a rank has saved and exited
  begun = 30,        ///< both ways: the sender's ranks run; to node 0: their pids, in order
  stop = 22,         ///< both ways: a user's signal
  suspend = 31,      ///< to node 0: Ctrl-Z was pressed; from node 0: suspend the ranks
  resume = 32,       ///< both ways, as suspend: resume the ranks
  kill = 23,         ///< both ways: kill the ranks, whose grace period is over
  finish = 24,       ///< node 0: JobResult; the last message of an attempt
  restart = 25,      ///< node 0, after an attempt: RestartOrder
  over = 26,         ///< node 0, after an attempt: no other attempt follows
};

/// The longest message. The connection is closed when a longer one is announced.
inline constexpr std::uint64_t kMostNodeMessageBytes = std::uint64_t{1} << 20;

/// The header of every message between authenticated launchers, and its body.
struct NodeEnvelope {
  NodeMessage kind = NodeMessage::ping;
  int attempt = 0;  ///< the attempt that the message belongs to; 0: the first
  std::string body;
};

/// A launcher's first message: its settings.
struct NodeHello {
  std::string version;  ///< of its dtrun
  int node_rank = 0;
  int num_nodes = 1;
  int num_ranks = 1;
  std::string host;
};

/// Node 0's message to all launchers once they have joined.
struct JobStart {
  Placement placement;       ///< without the receiver's node_rank and store_port
  double abort_grace = 0.0;  ///< seconds, as the next two
  double stop_grace = 0.0;
  double heartbeat_timeout = 0.0;
  int max_restarts = 0;
};

/// The report on a rank that has ended or was stopped.
struct RankReport {
  int rank = 0;
  std::int64_t step = -1;
  bool stopped = false;
  RankEnd end = {};                                  ///< of one that has ended, without its time
  std::optional<ReportedError> reported_error = {};  ///< the error that it reported
  std::vector<std::string> last_lines = {};          ///< of its standard error
};

/// The order to end all ranks.
struct AbortOrder {
  int rank = 0;          ///< the culprit, which the ranks name in their messages
  std::string reason;    ///< "exited with status 7"
  bool quietly = false;  ///< the job had not begun, and its error has been printed
  int status = 0;        ///< preliminary exit status of the job
};

/// How the job ended, as decided by node 0.
struct JobResult {
  int status = 0;
  bool failed = false;  ///< false: all ranks succeeded, saved or were stopped
  std::string line;     ///< the last line of the report; empty: none
};

/// The order to restart the ranks.
struct RestartOrder {
  int attempt = 0;
  int master_port = 0;
  std::string reason;     ///< how the attempt before failed
  std::string committed;  ///< CommittedSteps of all attempts before
};

[[nodiscard]] std::string encode(NodeMessage kind, int attempt, std::string_view body);
[[nodiscard]] std::string encode(const NodeHello& hello);
[[nodiscard]] std::string encode(const JobStart& start);
[[nodiscard]] std::string encode(const RankReport& news);
[[nodiscard]] std::string encode(const AbortOrder& order);
[[nodiscard]] std::string encode(const JobResult& decision);
[[nodiscard]] std::string encode(const RestartOrder& order);

/// Return nullopt for a malformed message or a value out of range. Control characters in texts are
/// escaped.
[[nodiscard]] std::optional<NodeEnvelope> decode_envelope(std::string_view bytes);
[[nodiscard]] std::optional<NodeHello> decode_hello(std::string_view bytes);
[[nodiscard]] std::optional<JobStart> decode_start(std::string_view bytes);
[[nodiscard]] std::optional<RankReport> decode_rank_report(std::string_view bytes);
[[nodiscard]] std::optional<AbortOrder> decode_abort(std::string_view bytes);
[[nodiscard]] std::optional<JobResult> decode_result(std::string_view bytes);
[[nodiscard]] std::optional<RestartOrder> decode_restart(std::string_view bytes);

}  // namespace launcher
