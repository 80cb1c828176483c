#include "launcher/nodes/node_link.h"

#include <algorithm>
#include <string>
#include <utility>

#include "dtrain/net/message.h"

namespace launcher {
namespace {

using dtrain::net::MessageWriter;

RankReport report_of(const Rank& rank) {
  const auto& lines = rank.error.last_lines();
  return {.rank = rank.index,
          .step = rank.step,
          .stopped = rank.stopped,
          .end = rank.end.value_or(RankEnd{}),
          .reported_error = rank.reported_error,
          .last_lines = {lines.begin(), lines.end()}};
}

}  // namespace

NodeLink::NodeLink(std::shared_ptr<NodeConnections> connections, const Placement& placement)
    : connections_(std::move(connections)),
      own_node_(placement.node_rank),
      done_(static_cast<std::size_t>(placement.num_nodes())),
      is_open_(placement.has_several_nodes()),
      progress_reports_(static_cast<std::size_t>(placement.world_size())) {}

void NodeLink::send_to_all(NodeMessage kind, std::string_view body) const {
  if (is_open_) connections_->send_to_all(kind, body);
}

void NodeLink::send_to_coordinator(NodeMessage kind, std::string_view body) const {
  if (is_open_) connections_->send(0, kind, body);
}

void NodeLink::send_stop_request(int signal) const {
  connections_->send(0, NodeMessage::stop, std::to_string(signal));
}

void NodeLink::report_started(std::span<const Rank> own) const {
  MessageWriter pids;
  for (const Rank& rank : own) pids.number(static_cast<std::uint64_t>(rank.pid));
  send_to_all(NodeMessage::begun, pids.bytes());
}

void NodeLink::report_rank(Rank& rank, SharedOutput& console) const {
  if (done_.size() < 2) return;
  const bool failed = rank.stopped || (rank.end && rank.end->failed());
  if (failed) rank.error.drain(console);
  if (!is_coordinator()) send_to_coordinator(NodeMessage::rank_end, encode(report_of(rank)));
}

void NodeLink::report_progress(const Rank& rank, std::int64_t now_ns) {
  constexpr std::int64_t kInterval_ns = 500'000'000;  // a busy rank sends one heartbeat a second
  if (is_coordinator()) return;
  ProgressReport& last = progress_reports_[static_cast<std::size_t>(rank.index)];
  const bool is_first = last.heartbeats == 0;
  if (rank.heartbeats == last.heartbeats || (!is_first && now_ns < last.time_ns + kInterval_ns)) {
    return;
  }
  last = {.heartbeats = rank.heartbeats, .time_ns = now_ns};
  send_to_coordinator(NodeMessage::progress, MessageWriter()
                                                 .number(static_cast<std::uint64_t>(rank.index))
                                                 .number(static_cast<std::uint64_t>(rank.step))
                                                 .number(static_cast<std::uint64_t>(rank.waited_us))
                                                 .bytes());
}

void NodeLink::report_records(Rank& rank) const {
  if (!is_open_ || is_coordinator() || !rank.records.is_complete) return;
  send_to_coordinator(NodeMessage::records, MessageWriter()
                                                .number(static_cast<std::uint64_t>(rank.index))
                                                .text(std::exchange(rank.records.text, {}))
                                                .number(rank.records.is_last ? 1 : 0)
                                                .bytes());
  rank.records.is_complete = false;
}

bool NodeLink::all_done() const { return std::ranges::find(done_, false) == done_.end(); }

}  // namespace launcher
