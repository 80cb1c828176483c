#include "launcher/nodes/node_events.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/text/text.h"
#include "dtrain/net/message.h"
#include "launcher/local/processes.h"

namespace launcher {
namespace {

using dtrain::base::ErrorKind;
using dtrain::net::MessageReader;

constexpr int kComm = static_cast<int>(ErrorKind::comm);
constexpr int kTimeout = static_cast<int>(ErrorKind::timeout);

std::string loss_reason(NodeLoss loss, const SilenceLimits& limits) {
  if (loss == NodeLoss::closed) return "closed its connection: its dtrun or its machine has ended";
  const bool began = loss == NodeLoss::silent;
  const auto limit = began ? limits.running : limits.starting;
  return fmt::format("{} {} ({}): its dtrun, its machine or the network has stopped",
                     began ? "was silent for" : "did not start its ranks within",
                     dtrain::base::readable_time(limit.count()),
                     began ? "--heartbeat-timeout" : "--rdzv-timeout");
}

}  // namespace

void NodeEvents::handle(const NodeEvent& event, bool has_back_pressure, const Moment& now) {
  if (event.loss) {
    const int status = *event.loss == NodeLoss::closed ? kComm : kTimeout;
    return lose_node(event.node, status, loss_reason(*event.loss, nodes_.limits()), now);
  }
  if (event.kind == NodeMessage::stop) {
    handle_stop(signal_in(event.body), now);
  } else if (event.kind == NodeMessage::suspend || event.kind == NodeMessage::resume) {
    stops_.suspend_ranks(event.kind == NodeMessage::suspend, now);
  } else if (event.kind == NodeMessage::kill) {
    judge_.kill_ordered(signal_in(event.body), now);
  } else if (state_.is_coordinator()) {
    handle_report(event, now);
  } else {
    handle_order(event, has_back_pressure, now);
  }
}

bool NodeEvents::all_nodes_done(LocalRanks& ranks, const Moment& now) {
  if (!nodes_.is_open()) return true;
  if (state_.phase == Phase::stopping && ranks.any_group_running()) return false;
  ranks.reap_orphans(now.ns, state_.verdict.stop_signal != 0);  // a group may just have ended
  ranks.adopt_orphan_ends();
  const int own_node = state_.placement.node_rank;
  const bool is_reported = nodes_.is_done(own_node);
  nodes_.set_done(own_node);
  if (state_.is_coordinator()) {
    if (!nodes_.all_done()) return false;
    state_.decide(AnnounceResult{});
    return true;
  }
  if (!nodes_.has_peers()) return true;  // no node is left to report when all have ended
  if (is_reported) return false;         // node 0 reports when all have ended
  for (const Rank& rank : state_.ranks.own()) {
    if (rank.orphan) state_.decide(ReportRank{rank.index});
  }
  state_.decide(SendToCoordinator{.kind = NodeMessage::node_done});
  return false;
}

void NodeEvents::handle_stop(int signal, const Moment& now) {
  // It was sent during the back-off before this attempt; the ranks of the attempt save and stop.
  if (signal == SIGUSR1 && state_.is_undisturbed()) return stops_.user_signal(signal, now);
  if (asks_to_stop(signal)) state_.verdict.request = signal;
  if (signal != 0 && state_.is_undisturbed()) stops_.stop_ranks(signal, now);
}

void NodeEvents::handle_report(const NodeEvent& event, const Moment& now) {
  MessageReader reader(event.body);
  if (event.kind == NodeMessage::rank_end) {
    const auto news = decode_rank_report(event.body);
    if (news) return update_rank(event.node, *news, now);
    lose_node(event.node, kComm, "sent a message that this dtrun cannot read", now);
  } else if (event.kind == NodeMessage::begun) {
    update_pids(event);
  } else if (event.kind == NodeMessage::progress) {
    update_progress(event, now);
  } else if (event.kind == NodeMessage::records) {
    update_records(event, now);
  } else if (event.kind == NodeMessage::held) {
    judge_.reset_hang_timers(now);
  } else if (event.kind == NodeMessage::node_done) {
    finish_node(event.node, now);
  } else if (event.kind == NodeMessage::node_failed) {
    const std::uint64_t number = reader.number();
    const int status = number >= 1 && number <= 255 ? static_cast<int>(number) : kComm;
    const std::string why = dtrain::base::printable(reader.text());
    lose_node(event.node, status, fmt::format("did not start: {}", why), now);
  }
}

void NodeEvents::handle_order(const NodeEvent& event, bool has_back_pressure, const Moment& now) {
  if (event.kind == NodeMessage::ask) {
    if (has_back_pressure) return state_.decide(SendToCoordinator{.kind = NodeMessage::held});
    for (Rank& rank : state_.ranks.own()) rank.forget_records();
    judge_.request_records();
  } else if (event.kind == NodeMessage::abort) {
    if (const auto order = decode_abort(event.body)) judge_.abort_ordered(*order, now);
  } else if (event.kind == NodeMessage::leaving) {
    if (state_.phase == Phase::running) state_.phase = Phase::exiting;  // node 0 has the deadline
  } else if (event.kind == NodeMessage::finish) {
    const auto result = decode_result(event.body);
    if (!result) return;
    state_.verdict.result = *result;
    state_.decide(CloseNodeLink{});
  }
}

void NodeEvents::update_pids(const NodeEvent& event) {
  MessageReader reader(event.body);
  for (Rank& rank : state_.ranks.all()) {
    if (rank.node == event.node) rank.pid = static_cast<pid_t>(reader.number());
  }
}

void NodeEvents::update_rank(int node, const RankReport& news, const Moment& now) {
  Rank* const rank = state_.ranks.find(static_cast<std::uint64_t>(news.rank), node);
  if (rank == nullptr) return;
  const bool is_new = !rank->end;
  rank->step = news.step;
  if (news.reported_error) rank->reported_error = news.reported_error;
  rank->error.set_last_lines(news.last_lines);
  if (news.stopped && !rank->stopped) {
    rank->stopped = true;
    return judge_.rank_stopped(*rank, now);
  }
  rank->end = RankEnd{now.ns, news.end.by_signal, news.end.code};
  if (is_new) judge_.rank_ended(*rank, now);
}

void NodeEvents::update_progress(const NodeEvent& event, const Moment& now) {
  MessageReader reader(event.body);
  const std::uint64_t index = reader.number();
  const auto step = static_cast<std::int64_t>(reader.number());
  const auto waited_us = static_cast<std::int64_t>(reader.number());
  Rank* const rank = reader.is_whole() ? state_.ranks.find(index, event.node) : nullptr;
  if (rank == nullptr) return;
  const std::int64_t step_before = std::exchange(rank->step, step);
  rank->waited_us = waited_us;
  ++rank->heartbeats;
  judge_.heartbeat(*rank, step_before, now);
}

void NodeEvents::update_records(const NodeEvent& event, const Moment& now) {
  MessageReader reader(event.body);
  const std::uint64_t index = reader.number();
  const std::string text = reader.text();
  const bool are_last = reader.number() != 0;
  Rank* const rank = reader.is_whole() ? state_.ranks.find(index, event.node) : nullptr;
  if (rank == nullptr || rank->records.is_last) return;
  rank->records = {
      .text = text, .is_complete = true, .is_last = are_last, .heartbeat = rank->heartbeats};
  judge_.records_arrived(now);
}

void NodeEvents::finish_node(int node, const Moment& now) {
  nodes_.set_done(node);
  const auto runs_there = [&](const Rank& rank) { return rank.node == node && rank.running(); };
  if (std::ranges::any_of(state_.ranks.all(), runs_there)) {
    lose_node(node, kComm, "did not report how all its ranks ended", now);
  }
}

void NodeEvents::lose_node(int node, int status, std::string reason, const Moment& now) {
  nodes_.set_done(node);
  judge_.node_lost({.node = node, .status = status, .reason = std::move(reason)}, now);
}

}  // namespace launcher
