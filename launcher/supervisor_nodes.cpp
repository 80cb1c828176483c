// The supervisor's part in a job of several nodes.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <set>
#include <utility>

#include "dtrain/base/printable.h"
#include "dtrain/base/readable.h"
#include "dtrain/net/message.h"
#include "launcher/descendants.h"
#include "launcher/signals.h"
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
  RankNews news;
  news.rank = rank.index;
  news.step = rank.step;
  news.stopped = rank.stopped;
  if (rank.end) {
    news.by_signal = rank.end->by_signal;
    news.code = rank.end->code;
  }
  news.has_told = rank.told.has_value();
  if (rank.told) {
    news.told_status = rank.told->status;
    news.told_of_all = rank.told->of_all;
    news.told_line = rank.told->line;
  }
  const auto& lines = rank.error.last_lines();
  news.last_lines.assign(lines.begin(), lines.end());
  return news;
}

}  // namespace

// --- whose ranks ---------------------------------------------------------------------------------

std::span<Rank> Supervisor::own_ranks() {
  const NodePlace& own = job_.placement.own();
  return std::span(ranks_).subspan(static_cast<std::size_t>(own.first_rank),
                                   static_cast<std::size_t>(own.num_ranks));
}

bool Supervisor::any_running() {
  const auto runs = [this](const Rank& rank) {
    return rank.running() && (judges() || rank.node == job_.placement.node_rank);
  };
  while (first_running_ < ranks_.size() && !runs(ranks_[first_running_])) ++first_running_;
  return first_running_ < ranks_.size();
}

bool Supervisor::any_group_running() {
  const std::set<pid_t> running = running_groups();
  return std::ranges::any_of(own_ranks(),
                             [&](const Rank& rank) { return running.contains(rank.pid); });
}

void Supervisor::take_orphans() {
  for (Rank& rank : own_ranks()) {
    if (rank.orphan) rank.end = rank.orphan;
  }
}

void Supervisor::add_far_ranks(int node) {
  const NodePlace& place = job_.placement.node(node);
  for (int local = 0; local < place.num_ranks; ++local) {
    ranks_.push_back(far_rank(job_, node, place.first_rank + local));
  }
}

// --- what this launcher tells --------------------------------------------------------------------

void Supervisor::tell_nodes(NodeMessage kind, std::string_view body) {
  if (job_.nodes && !is_over_) job_.nodes->send_to_all(kind, body);
}

// Of node 0 too: it reads the last lines of a rank that failed before it tells anybody.
void Supervisor::tell_judge(Rank& rank) {
  const bool failed = rank.stopped || (rank.end && rank.end->failed());
  if (failed) rank.error.read_what_is_there(console_);
  if (judges() || is_over_) return;
  job_.nodes->send(0, NodeMessage::rank_end, encode(news_of(rank)));
}

void Supervisor::tell_begun() {
  MessageWriter pids;
  for (const Rank& rank : own_ranks()) pids.number(static_cast<std::uint64_t>(rank.pid));
  tell_nodes(NodeMessage::begun, pids.bytes());
}

void Supervisor::tell_progress(Rank& rank) {
  constexpr std::int64_t kInterval_ns = 500'000'000;  // a busy rank says so once a second
  const bool is_first = rank.told_signs == 0;
  if (rank.signs == rank.told_signs || (!is_first && now_ns() < rank.told_ns + kInterval_ns)) {
    return;
  }
  rank.told_signs = rank.signs;
  rank.told_ns = now_ns();
  job_.nodes->send(0, NodeMessage::progress,
                   MessageWriter()
                       .number(static_cast<std::uint64_t>(rank.index))
                       .number(static_cast<std::uint64_t>(rank.step))
                       .number(static_cast<std::uint64_t>(rank.waited_us))
                       .bytes());
}

// Once: sent again later, an old answer would pass for a new one.
void Supervisor::tell_records(Rank& rank) {
  if (is_over_) return;
  job_.nodes->send(
      0, NodeMessage::records,
      MessageWriter().number(static_cast<std::uint64_t>(rank.index)).text(rank.records).bytes());
  rank.forget_records();
}

bool Supervisor::job_has_ended() {
  if (!job_.nodes || is_over_) return true;
  if (phase_ == Phase::stopping && any_group_running()) return false;
  reap_orphans();  // the last of a group may have ended since
  take_orphans();
  if (judges()) {
    nodes_done_.resize(static_cast<std::size_t>(job_.placement.num_nodes()));
    nodes_done_[0] = true;
    if (!std::ranges::all_of(nodes_done_, [](bool done) { return done; })) return false;
    tell_decision();
    return true;
  }
  if (!job_.nodes->has_peers()) return true;  // nobody is left to say when all have ended
  if (done_is_told_) return false;            // node 0 says when all have ended
  done_is_told_ = true;
  for (Rank& rank : own_ranks()) {
    if (rank.orphan) tell_judge(rank);
  }
  job_.nodes->send(0, NodeMessage::node_done, {});
  return false;
}

void Supervisor::tell_decision() {
  tell_nodes(NodeMessage::finish,
             encode(Decision{.status = status_of(verdict_, ranks_),
                             .failed = verdict_.failed() || verdict_.overdue,
                             .line = last_line(verdict_, ranks_, job_.placement)}));
  stop_listening();
}

// --- what it hears -------------------------------------------------------------------------------

void Supervisor::on_nodes() {
  std::vector<NodeEvent> events = job_.nodes->take();
  auto next = events.begin();
  while (next != events.end() && !is_over_) take(*next++);
  events.erase(events.begin(), next);
  job_.nodes->put_back(std::move(events));  // of what follows this attempt
}

void Supervisor::stop_listening() {
  is_over_ = true;
  unwatch(job_.nodes->fd());
}

void Supervisor::take(const NodeEvent& event) {
  if (event.loss) {
    const int status = *event.loss == NodeLoss::closed ? kComm : kTimeout;
    return lose_node(event.node, status, words_on(*event.loss, job_.nodes->limits()));
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
    if (phase_ < Phase::killing) obey_kill(signal_in(event.body));
  } else if (judges()) {
    take_from_node(event);
  } else {
    take_from_judge(event);
  }
}

// A user's second Ctrl-C or SIGQUIT on another node, or its ranks had their time.
void Supervisor::obey_kill(int signal) {
  if (is_undisturbed() && signal != 0) verdict_.stop_signal = signal;
  if (phase_ == Phase::leaving && signal == 0) verdict_.overdue = true;
  kill_ranks();
}

void Supervisor::take_from_node(const NodeEvent& event) {
  MessageReader reader(event.body);
  if (event.kind == NodeMessage::rank_end) {
    const auto news = decode_rank_news(event.body);
    if (!news) return lose_node(event.node, kComm, "sent a message that this dtrun cannot read");
    take_news(event.node, *news);
  } else if (event.kind == NodeMessage::begun) {
    for (Rank& rank : ranks_) {
      if (rank.node == event.node) rank.pid = static_cast<pid_t>(reader.number());
    }
  } else if (event.kind == NodeMessage::progress) {
    const std::uint64_t index = reader.number();
    const auto step = static_cast<std::int64_t>(reader.number());
    const auto waited_us = static_cast<std::int64_t>(reader.number());
    if (!reader.is_whole() || index >= ranks_.size() || ranks_[index].node != event.node) return;
    const std::int64_t step_before = std::exchange(ranks_[index].step, step);
    ranks_[index].waited_us = waited_us;
    ++ranks_[index].signs;
    on_sign_of_life(ranks_[index], step_before);
  } else if (event.kind == NodeMessage::records) {
    const std::uint64_t index = reader.number();
    const std::string text = reader.text();
    if (!reader.is_whole() || index >= ranks_.size() || ranks_[index].node != event.node) return;
    ranks_[index].records = text;
    ranks_[index].has_records = true;
    ranks_[index].records_signs = ranks_[index].signs;
    on_records(ranks_[index]);
  } else if (event.kind == NodeMessage::held) {
    excuse_ranks();
  } else if (event.kind == NodeMessage::node_done) {
    nodes_done_.resize(static_cast<std::size_t>(job_.placement.num_nodes()));
    nodes_done_[static_cast<std::size_t>(event.node)] = true;
    const bool knows_all = std::ranges::none_of(
        ranks_, [&](const Rank& rank) { return rank.node == event.node && rank.running(); });
    if (!knows_all) lose_node(event.node, kComm, "did not tell how all its ranks had ended");
  } else if (event.kind == NodeMessage::node_failed) {
    const std::uint64_t told = reader.number();
    const int status = told >= 1 && told <= 255 ? static_cast<int>(told) : kComm;
    const std::string why = dtrain::base::printable(reader.text());
    lose_node(event.node, status, fmt::format("did not start: {}", why));
  }
}

void Supervisor::take_from_judge(const NodeEvent& event) {
  if (event.kind == NodeMessage::ask) {
    obey_ask();
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
  if (static_cast<std::size_t>(news.rank) >= ranks_.size()) return;
  Rank& rank = ranks_[static_cast<std::size_t>(news.rank)];
  if (rank.node != node) return;
  const bool is_new = !rank.end;
  rank.step = news.step;
  if (news.has_told) {
    rank.told =
        ToldError{.status = news.told_status, .of_all = news.told_of_all, .line = news.told_line};
  }
  rank.error.recall(news.last_lines);
  if (news.stopped && !rank.stopped) {
    rank.stopped = true;
    if (is_undisturbed() || phase_ == Phase::blaming) judge_stop(rank);
    return;
  }
  rank.end = RankEnd{now_ns(), news.by_signal, news.code};
  if (is_new) judge_end(rank);
}

// A rank that ended because of another's failure does not explain the end of the job.
bool Supervisor::culprit_blames_another() const {
  if (!verdict_.culprit) return false;
  const Rank& culprit = ranks_[static_cast<std::size_t>(*verdict_.culprit)];
  const bool is_found = culprit.stopped || !culprit.hang.empty();
  return !is_found && culprit.end && culprit.end->blames_another();
}

void Supervisor::lose_node(int node, int status, std::string reason) {
  nodes_done_.resize(static_cast<std::size_t>(job_.placement.num_nodes()));
  nodes_done_[static_cast<std::size_t>(node)] = true;
  verdict_.has_lost_node = true;
  for (Rank& rank : ranks_) {
    // Without node 0 nothing is known of the other nodes either.
    const bool is_unknown = judges() ? rank.node == node : rank.node != job_.placement.node_rank;
    if (is_unknown && !rank.end) rank.lost = true;
  }
  if (!judges()) stop_listening();  // node 0 decides nothing any more
  if (!is_undisturbed() && !culprit_blames_another()) return;
  verdict_.culprit.reset();
  verdict_.lost = NodeFailure{.node = node, .status = status, .reason = std::move(reason)};
  if (phase_ >= Phase::aborting) return;  // the ranks are being ended already
  verdict_.failed_ns = now_ns();
  abort_ranks();
}

}  // namespace launcher
