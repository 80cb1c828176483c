// The messages between the launchers of a job.
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
  waiting = 3,       ///< node 0, before the start: who is missing
  refused = 4,       ///< node 0, before the start: the job cannot start
  start = 5,         ///< node 0: JobStart
  rank_end = 16,     ///< to node 0: RankNews of a rank that has ended or was stopped
  progress = 17,     ///< to node 0: a rank goes on: step, microseconds it waited
  node_done = 18,    ///< to node 0: all ranks of a node have ended
  node_failed = 19,  ///< to node 0: a node could not start its ranks; status and why
  records = 27,      ///< to node 0: where a rank is
  held = 29,         ///< to node 0: output has no reader, or has one again
  ask = 28,          ///< node 0: where are the ranks?
  abort = 20,        ///< node 0: AbortOrder
  leaving = 21,      ///< node 0: a rank has saved and left
  begun = 30,        ///< both ways: the sender's ranks run; to node 0: their pids, in order
  stop = 22,         ///< both ways: a user's signal
  suspend = 31,      ///< to node 0: Ctrl-Z was pressed; from node 0: suspend the ranks
  resume = 32,       ///< likewise, to continue the ranks
  kill = 23,         ///< both ways: the ranks had their time
  finish = 24,       ///< node 0: JobResult; the last message of an attempt
  restart = 25,      ///< node 0, after an attempt: RestartOrder
  over = 26,         ///< node 0, after an attempt: no other follows
};

/// The longest message; what announces a longer one breaks the connection.
inline constexpr std::uint64_t kMostNodeMessageBytes = std::uint64_t{1} << 20;

/// What every message between launchers that have proved who they are begins with.
struct NodeEnvelope {
  NodeMessage kind = NodeMessage::ping;
  int attempt = 0;  ///< to run the job, to which the message belongs; 0: the first
  std::string body;
};

/// What a launcher says of itself when it comes.
struct NodeHello {
  std::string version;  ///< of its dtrun
  int node_rank = 0;
  int num_nodes = 1;
  int num_ranks = 1;
  std::string host;
};

/// What node 0 tells all launchers once they have come.
struct JobStart {
  Placement placement;       ///< without the receiver's node_rank and store_port
  double abort_grace = 0.0;  ///< seconds, as the next two
  double stop_grace = 0.0;
  double heartbeat_timeout = 0.0;
  int max_restarts = 0;
};

/// What is known of a rank that has ended or was stopped.
struct RankNews {
  int rank = 0;
  std::int64_t step = -1;
  bool stopped = false;
  RankEnd end = {};                          ///< of one that has ended, without its time
  std::optional<ToldError> told = {};        ///< the error that it reported
  std::vector<std::string> last_lines = {};  ///< of its standard error
};

/// The order to end all ranks.
struct AbortOrder {
  int rank = 0;          ///< that the ranks are told of
  std::string reason;    ///< "exited with status 7"
  bool quietly = false;  ///< the job had not begun, and its error has been printed
  int status = 0;        ///< of the job, as far as it is known
};

/// How the job ended, as node 0 found.
struct JobResult {
  int status = 0;
  bool failed = false;  ///< something failed; else all ended in peace or were stopped
  std::string line;     ///< the last line of the report; empty: none
};

/// The order to start the ranks again.
struct RestartOrder {
  int attempt = 0;
  int master_port = 0;
  std::string reason;     ///< how the attempt before failed
  std::string committed;  ///< CommittedSteps of all attempts before
};

[[nodiscard]] std::string encode(NodeMessage kind, int attempt, std::string_view body);
[[nodiscard]] std::string encode(const NodeHello& hello);
[[nodiscard]] std::string encode(const JobStart& start);
[[nodiscard]] std::string encode(const RankNews& news);
[[nodiscard]] std::string encode(const AbortOrder& order);
[[nodiscard]] std::string encode(const JobResult& decision);
[[nodiscard]] std::string encode(const RestartOrder& order);

/// Each gives nothing for bytes that are no such message, or hold what cannot be. Texts come
/// without control characters.
[[nodiscard]] std::optional<NodeEnvelope> decode_envelope(std::string_view bytes);
[[nodiscard]] std::optional<NodeHello> decode_hello(std::string_view bytes);
[[nodiscard]] std::optional<JobStart> decode_start(std::string_view bytes);
[[nodiscard]] std::optional<RankNews> decode_rank_news(std::string_view bytes);
[[nodiscard]] std::optional<AbortOrder> decode_abort(std::string_view bytes);
[[nodiscard]] std::optional<JobResult> decode_result(std::string_view bytes);
[[nodiscard]] std::optional<RestartOrder> decode_restart(std::string_view bytes);

}  // namespace launcher
