// The supervisor's part in a job of several nodes.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <utility>

#include "dtrain/base/text/text.h"
#include "dtrain/net/message.h"
#include "launcher/local/processes.h"
#include "launcher/supervisor.h"

namespace launcher {
namespace {

using dtrain::base::ErrorKind;
using dtrain::net::MessageReader;
using dtrain::net::MessageWriter;

constexpr int kComm = static_cast<int>(ErrorKind::comm);
constexpr int kTimeout = static_cast<int>(ErrorKind::timeout);

/// What a lost node did.
std::string words_on(NodeLoss loss, const SilenceLimits& limits) {
  if (loss == NodeLoss::closed) return "closed its connection: its dtrun or its machine has ended";
  const bool began = loss == NodeLoss::silent;
  const auto limit = began ? limits.running : limits.starting;
  return fmt::format("{} {} ({}): its dtrun, its machine or the network has stopped",
                     began ? "was silent for" : "did not start its ranks within",
                     dtrain::base::readable_time(limit.count()),
                     began ? "--heartbeat-timeout" : "--rdzv-timeout");
}

RankNews news_of(const Rank& rank) {
  const auto& lines = rank.error.last_lines();
  return {.rank = rank.index,
          .step = rank.step,
          .stopped = rank.stopped,
          .end = rank.end.value_or(RankEnd{}),
          .told = rank.told,
          .last_lines = {lines.begin(), lines.end()}};
}

}  // namespace

// --- what this launcher tells --------------------------------------------------------------------

void Supervisor::notify_started() {
  MessageWriter pids;
  for (const Rank& rank : ranks_.own()) pids.number(static_cast<std::uint64_t>(rank.pid));
  nodes_.tell_all(NodeMessage::begun, pids.bytes());
}

// On node 0 too: it reads the last lines of a rank that failed before it tells anybody.
void Supervisor::notify_coordinator(Rank& rank) {
  if (!nodes_.has_several()) return;
  const bool failed = rank.stopped || (rank.end && rank.end->failed());
  if (failed) rank.error.read_what_is_there(output_.console());
  if (is_coordinator()) return;
  nodes_.tell_coordinator(NodeMessage::rank_end, encode(news_of(rank)));
}

void Supervisor::report_progress(Rank& rank) {
  constexpr std::int64_t kInterval_ns = 500'000'000;  // a busy rank says so once a second
  const bool is_first = rank.told_signs == 0;
  if (rank.signs == rank.told_signs || (!is_first && now_ns() < rank.told_ns + kInterval_ns)) {
    return;
  }
  rank.told_signs = rank.signs;
  rank.told_ns = now_ns();
  nodes_.tell_coordinator(NodeMessage::progress,
                          MessageWriter()
                              .number(static_cast<std::uint64_t>(rank.index))
                              .number(static_cast<std::uint64_t>(rank.step))
                              .number(static_cast<std::uint64_t>(rank.waited_us))
                              .bytes());
}

bool Supervisor::job_has_ended() {
  if (!nodes_.are_heard()) return true;
  if (phase_ == Phase::stopping && ranks_.any_group_running()) return false;
  ranks_.reap_orphans(now_ns(), verdict_.stop_signal != 0);  // the last of a group may have ended
  ranks_.take_orphans();
  const int own_node = job_.placement.node_rank;
  const bool is_told = nodes_.is_done(own_node);
  nodes_.set_done(own_node);
  if (is_coordinator()) {
    if (!nodes_.are_all_done()) return false;
    announce_decision();
    return true;
  }
  if (!nodes_.channel().has_peers()) return true;  // nobody is left to say when all have ended
  if (is_told) return false;                       // node 0 says when all have ended
  for (Rank& rank : ranks_.own()) {
    if (rank.orphan) notify_coordinator(rank);
  }
  nodes_.tell_coordinator(NodeMessage::node_done);
  return false;
}

void Supervisor::announce_decision() {
  nodes_.tell_all(NodeMessage::finish,
                  encode(Decision{.status = status_of(verdict_, ranks_.all()),
                                  .failed = verdict_.failed() || verdict_.overdue,
                                  .line = last_line(verdict_, ranks_.all(), job_.placement)}));
  stop_listening();
}

// --- what it hears -------------------------------------------------------------------------------

void Supervisor::on_nodes() {
  Channel& channel = nodes_.channel();
  std::vector<NodeEvent> events = channel.take();
  auto next = events.begin();
  while (next != events.end() && nodes_.are_heard()) take(*next++);
  events.erase(events.begin(), next);
  channel.put_back(std::move(events));  // of what follows this attempt
}

void Supervisor::stop_listening() {
  nodes_.close();
  unwatch(nodes_.channel().fd());
}

void Supervisor::take(const NodeEvent& event) {
  if (event.loss) {
    const int status = *event.loss == NodeLoss::closed ? kComm : kTimeout;
    return lose_node(event.node, status, words_on(*event.loss, nodes_.channel().limits()));
  }
  if (event.kind == NodeMessage::stop) {
    const int signal = signal_in(event.body);
    // It was sent in the pause before this attempt, whose ranks are to save.
    if (signal == SIGUSR1 && is_undisturbed()) return on_signal(signal);
    if (asks_to_stop(signal)) verdict_.request = signal;
    if (signal == 0 || !is_undisturbed()) return;
    stop_ranks(signal);
  } else if (event.kind == NodeMessage::suspend || event.kind == NodeMessage::resume) {
    suspend_ranks(event.kind == NodeMessage::suspend);
  } else if (event.kind == NodeMessage::kill) {
    if (phase_ >= Phase::killing) return;
    // A user's second Ctrl-C or SIGQUIT on another node, or its ranks had their time.
    const int signal = signal_in(event.body);
    if (is_undisturbed() && signal != 0) verdict_.stop_signal = signal;
    if (phase_ == Phase::leaving && signal == 0) verdict_.overdue = true;
    kill_ranks();
  } else if (is_coordinator()) {
    take_from_node(event);
  } else {
    take_from_coordinator(event);
  }
}

void Supervisor::take_from_node(const NodeEvent& event) {
  MessageReader reader(event.body);
  if (event.kind == NodeMessage::rank_end) {
    const auto news = decode_rank_news(event.body);
    if (!news) return lose_node(event.node, kComm, "sent a message that this dtrun cannot read");
    take_news(event.node, *news);
  } else if (event.kind == NodeMessage::begun) {
    for (Rank& rank : ranks_.all()) {
      if (rank.node == event.node) rank.pid = static_cast<pid_t>(reader.number());
    }
  } else if (event.kind == NodeMessage::progress) {
    const std::uint64_t index = reader.number();
    const auto step = static_cast<std::int64_t>(reader.number());
    const auto waited_us = static_cast<std::int64_t>(reader.number());
    Rank* const rank = reader.is_whole() ? ranks_.find(index, event.node) : nullptr;
    if (rank == nullptr) return;
    const std::int64_t step_before = std::exchange(rank->step, step);
    rank->waited_us = waited_us;
    ++rank->signs;
    on_sign_of_life(*rank, step_before);
  } else if (event.kind == NodeMessage::records) {
    const std::uint64_t index = reader.number();
    const std::string text = reader.text();
    const bool are_last = reader.number() != 0;
    Rank* const rank = reader.is_whole() ? ranks_.find(index, event.node) : nullptr;
    if (rank == nullptr || rank->records_are_last) return;
    rank->records = text;
    rank->records_are_last = are_last;
    rank->has_records = true;
    rank->records_signs = rank->signs;
    on_records(*rank);
  } else if (event.kind == NodeMessage::held) {
    excuse_ranks();
  } else if (event.kind == NodeMessage::node_done) {
    nodes_.set_done(event.node);
    const bool knows_all = std::ranges::none_of(
        ranks_.all(), [&](const Rank& rank) { return rank.node == event.node && rank.running(); });
    if (!knows_all) lose_node(event.node, kComm, "did not tell how all its ranks had ended");
  } else if (event.kind == NodeMessage::node_failed) {
    const std::uint64_t told = reader.number();
    const int status = told >= 1 && told <= 255 ? static_cast<int>(told) : kComm;
    const std::string why = dtrain::base::printable(reader.text());
    lose_node(event.node, status, fmt::format("did not start: {}", why));
  }
}

void Supervisor::take_from_coordinator(const NodeEvent& event) {
  if (event.kind == NodeMessage::ask) {
    if (output_.is_held()) return nodes_.tell_coordinator(NodeMessage::held);
    for (Rank& rank : ranks_.own()) rank.forget_records();
    ask_own_ranks();
  } else if (event.kind == NodeMessage::abort) {
    const auto order = decode_abort(event.body);
    if (!order || phase_ >= Phase::aborting) return;
    // In case node 0's last word does not come.
    verdict_.decided =
        Decision{.status = order->status,
                 .failed = true,
                 .line = fmt::format("failed: rank {} {}", order->rank, order->reason)};
    verdict_.failed_ns = now_ns();
    obey_abort(*order);
  } else if (event.kind == NodeMessage::leaving) {
    if (phase_ == Phase::running) phase_ = Phase::leaving;  // node 0 watches the time
  } else if (event.kind == NodeMessage::finish) {
    const auto decision = decode_decision(event.body);
    if (!decision) return;
    verdict_.decided = *decision;
    stop_listening();
  }
}

void Supervisor::take_news(int node, const RankNews& news) {
  Rank* const found = ranks_.find(static_cast<std::uint64_t>(news.rank), node);
  if (found == nullptr) return;
  Rank& rank = *found;
  const bool is_new = !rank.end;
  rank.step = news.step;
  if (news.told) rank.told = news.told;
  rank.error.recall(news.last_lines);
  if (news.stopped && !rank.stopped) {
    rank.stopped = true;
    if (is_undisturbed() || phase_ == Phase::blaming) begin_failure(rank);
    return;
  }
  rank.end = RankEnd{now_ns(), news.end.by_signal, news.end.code};
  if (is_new) judge_end(rank);
}

void Supervisor::lose_node(int node, int status, std::string reason) {
  nodes_.set_done(node);
  verdict_.has_lost_node = true;
  for (Rank& rank : ranks_.all()) {
    // Without node 0 nothing is known of the other nodes either.
    const bool is_unknown =
        is_coordinator() ? rank.node == node : rank.node != job_.placement.node_rank;
    if (is_unknown && !rank.end) rank.lost = true;
  }
  if (!is_coordinator()) stop_listening();  // node 0 decides nothing any more
  if (!is_undisturbed()) {
    // A rank that ended because of another's failure does not explain the end of the job.
    const Rank* const culprit = verdict_.culprit ? &ranks_.at(*verdict_.culprit) : nullptr;
    const bool is_explained = culprit == nullptr || culprit->stopped || !culprit->hang.empty() ||
                              !culprit->end || !culprit->end->blames_another();
    if (is_explained) return;
  }
  verdict_.culprit.reset();
  verdict_.lost = NodeFailure{.node = node, .status = status, .reason = std::move(reason)};
  if (phase_ >= Phase::aborting) return;  // the ranks are being ended already
  verdict_.failed_ns = now_ns();
  abort_ranks();
}

}  // namespace launcher
