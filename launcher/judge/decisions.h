// Actions that the classes in judge/ request; the supervisor executes them in order.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "launcher/nodes/messages.h"

namespace launcher {

/// Print a line of dtrun itself, as opposed to a rank's output.
struct Say {
  std::string text;
};

/// Send `line`, unless it is empty, to this node's running ranks; then signals, in this order, to
/// their process groups.
struct SignalRanks {
  std::vector<int> signals;
  std::string line = {};
};

/// Send SIGKILL to this node's running ranks.
struct KillRanks {};

/// Send a signal, which would end most programs, to those processes of each rank that handle it.
struct NotifyRanks {
  int signal = 0;
};

/// Ask these ranks of this node for their positions and open collectives.
struct RequestRecords {
  std::vector<int> ranks;
};

/// Report to node 0 that a rank stays stopped, or how it has ended.
struct ReportRank {
  int rank = 0;
};

struct SendToNodes {
  NodeMessage kind = NodeMessage::ping;
  std::string body = {};
};

struct SendToCoordinator {
  NodeMessage kind = NodeMessage::ping;
  std::string body = {};
};

/// Ask node 0 to stop the job, even if the link to the other nodes is closed.
struct SendStopRequest {
  int signal = 0;
};

/// Node 0: send the job's result to all nodes, then close the link to them.
struct AnnounceResult {};

/// Ignore the other nodes from now on, except heartbeats if `answers_heartbeats`.
struct CloseNodeLink {
  bool answers_heartbeats = false;
};

/// End the processes that the ranks have started, then write the remaining output.
struct BeginShutdown {};

/// The user sent another signal during the shutdown. kills: it ends the remaining processes now.
struct HurryShutdown {
  bool kills = false;
};

using Decision = std::variant<Say, SignalRanks, KillRanks, NotifyRanks, RequestRecords, ReportRank,
                              SendToNodes, SendToCoordinator, SendStopRequest, AnnounceResult,
                              CloseNodeLink, BeginShutdown, HurryShutdown>;

}  // namespace launcher
