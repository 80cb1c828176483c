// Applies the reports and orders of other nodes to this launcher's state of the job.
#pragma once

#include <string>

#include "launcher/judge/failure_judge.h"
#include "launcher/judge/job_state.h"
#include "launcher/judge/stop_policy.h"
#include "launcher/local/local_ranks.h"
#include "launcher/nodes/messages.h"
#include "launcher/nodes/node_link.h"

namespace launcher {

/// Decodes messages of other launchers, updates the records of their ranks and informs the judge.
/// Node 0 receives reports, the other nodes receive orders, and all receive the user's signals.
///
/// Threads: one.
class NodeEvents {
 public:
  NodeEvents(JobState& state, FailureJudge& judge, StopPolicy& stops, NodeLink& nodes)
      : state_(state), judge_(judge), stops_(stops), nodes_(nodes) {}

  /// has_back_pressure: back-pressure holds up this node's ranks.
  void handle(const NodeEvent& event, bool has_back_pressure, const Moment& now);
  /// Called when no rank that this launcher knows of runs any more. Returns whether the ranks of
  /// all nodes have ended. If only those of this node have, reports so to node 0, once.
  [[nodiscard]] bool all_nodes_done(LocalRanks& ranks, const Moment& now);

 private:
  void handle_report(const NodeEvent& event, const Moment& now);
  void handle_order(const NodeEvent& event, bool has_back_pressure, const Moment& now);
  void handle_stop(int signal, const Moment& now);
  void update_pids(const NodeEvent& event);
  void update_rank(int node, const RankReport& news, const Moment& now);
  void update_progress(const NodeEvent& event, const Moment& now);
  void update_records(const NodeEvent& event, const Moment& now);
  void finish_node(int node, const Moment& now);
  void lose_node(int node, int status, std::string reason, const Moment& now);

  JobState& state_;
  FailureJudge& judge_;
  StopPolicy& stops_;
  NodeLink& nodes_;
};

}  // namespace launcher
