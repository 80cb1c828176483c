// The supervisor's part in a job of several nodes.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "dtrain/base/number.h"
#include "dtrain/base/printable.h"
#include "dtrain/base/readable.h"
#include "dtrain/net/message.h"
#include "launcher/descendants.h"
#include "launcher/supervisor.h"

namespace launcher {
namespace {

using dtrain::base::ErrorKind;
using dtrain::net::MessageReader;
using dtrain::net::MessageWriter;

constexpr int kMostSignal = 64;

int signal_in(std::string_view text) {
  const auto signal = dtrain::base::number_in<int>(text);
  return signal && *signal > 0 && *signal <= kMostSignal ? *signal : 0;
}

RankNews news_of(const Rank& rank) {
  RankNews news;
  news.rank = rank.index;
  news.pid = rank.pid;
  news.step = rank.step;
  news.stopped = rank.stopped;
  news.time_ns = Channel::now_ns();
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

bool Supervisor::any_running() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [this](const Rank& rank) {
    return rank.running() && (judges() || rank.node == job_.placement.node_rank);
  });
}

bool Supervisor::any_group_running() {
  return std::ranges::any_of(own_ranks(),
                             [](const Rank& rank) { return group_is_running(rank.pid); });
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
  constexpr int kMaxReads = 16;
  const bool failed = rank.stopped || (rank.end && rank.end->failed());
  for (int reads = 0; failed && reads < kMaxReads && rank.error.open(); ++reads) {
    if (!rank.error.read(console_)) break;
  }
  if (judges() || is_over_) return;
  RankNews news = news_of(rank);
  if (rank.end) {
    news.time_ns = Channel::now_ns() - (now_ns() - rank.end->time_ns);
  }
  job_.nodes->send(0, NodeMessage::rank_end, encode(news));
}

void Supervisor::tell_progress(Rank& rank) {
  constexpr std::int64_t kInterval_ns = 1'000'000'000;
  if (rank.step == rank.told_step || (rank.told_step >= 0 && now_ns() < next_progress_ns_)) return;
  rank.told_step = rank.step;
  next_progress_ns_ = now_ns() + kInterval_ns;
  job_.nodes->send(0, NodeMessage::progress,
                   MessageWriter()
                       .number(static_cast<std::uint64_t>(rank.index))
                       .number(static_cast<std::uint64_t>(rank.step))
                       .bytes());
}

bool Supervisor::job_has_ended() {
  if (!job_.nodes || is_over_) return true;
  if (phase_ == Phase::stopping && any_group_running()) return false;
  if (judges()) {
    nodes_done_.resize(static_cast<std::size_t>(job_.placement.num_nodes()));
    nodes_done_[0] = true;
    if (!std::ranges::all_of(nodes_done_, [](bool done) { return done; })) return false;
    tell_decision();
    return true;
  }
  if (done_is_told_) return false;  // node 0 says when all have ended
  done_is_told_ = true;
  for (Rank& rank : own_ranks()) {
    if (!rank.orphan) continue;
    rank.end = rank.orphan;
    tell_judge(rank);
  }
  job_.nodes->send(0, NodeMessage::node_done, {});
  return false;
}

void Supervisor::tell_decision() {
  tell_nodes(NodeMessage::finish,
             encode(Decision{.status = status_of(verdict_, ranks_),
                             .failed = verdict_.failed() || verdict_.overdue,
                             .line = last_line(verdict_, ranks_, job_.placement)}));
  is_over_ = true;
}

// --- what it hears -------------------------------------------------------------------------------

void Supervisor::on_nodes() {
  for (const NodeEvent& event : job_.nodes->take()) {
    if (!is_over_) take(event);
  }
}

void Supervisor::take(const NodeEvent& event) {
  if (event.loss) {
    const bool closed = *event.loss == NodeLoss::closed;
    const std::string timeout = dtrain::base::readable_time(job_.nodes->timeout().count());
    return lose_node(event.node, static_cast<int>(closed ? ErrorKind::comm : ErrorKind::timeout),
                     closed ? "closed its connection: its dtrun or its machine has ended"
                            : fmt::format("was silent for {} (--heartbeat-timeout): its dtrun, its "
                                          "machine or the network has stopped",
                                          timeout));
  }
  if (event.kind == NodeMessage::stop) {
    const int signal = signal_in(event.body);
    if (signal == 0 || (phase_ != Phase::running && phase_ != Phase::leaving)) return;
    stop_came_from_afar_ = true;
    stop_ranks(signal);
  } else if (event.kind == NodeMessage::kill) {
    if (phase_ >= Phase::killing) return;
    if (phase_ == Phase::running) verdict_.stop_signal = signal_in(event.body);
    kill_ranks();
  } else if (judges()) {
    take_from_node(event);
  } else {
    take_from_judge(event);
  }
}

void Supervisor::take_from_node(const NodeEvent& event) {
  MessageReader reader(event.body);
  if (event.kind == NodeMessage::rank_end) {
    if (const auto news = decode_rank_news(event.body)) take_news(event.node, *news);
  } else if (event.kind == NodeMessage::progress) {
    const std::uint64_t rank = reader.number();
    const auto step = static_cast<std::int64_t>(reader.number());
    if (reader.is_whole() && rank < ranks_.size()) ranks_[rank].step = step;
  } else if (event.kind == NodeMessage::node_done) {
    nodes_done_.resize(static_cast<std::size_t>(job_.placement.num_nodes()));
    nodes_done_[static_cast<std::size_t>(event.node)] = true;
  } else if (event.kind == NodeMessage::node_failed) {
    const auto status = static_cast<int>(reader.number() & 0xFF);
    const std::string why = dtrain::base::printable(reader.text());
    lose_node(event.node, status, fmt::format("cannot start: {}", why));
  }
}

void Supervisor::take_from_judge(const NodeEvent& event) {
  if (event.kind == NodeMessage::abort) {
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
    if (phase_ == Phase::running) enter(Phase::leaving, job_.options.stop_grace);
  } else if (event.kind == NodeMessage::finish) {
    const auto decision = decode_decision(event.body);
    if (!decision) return;
    verdict_.decided = *decision;
    is_over_ = true;
  }
}

void Supervisor::take_news(int node, const RankNews& news) {
  if (static_cast<std::size_t>(news.rank) >= ranks_.size()) return;
  Rank& rank = ranks_[static_cast<std::size_t>(news.rank)];
  if (rank.node != node) return;
  const bool is_new = !rank.end;
  rank.pid = static_cast<pid_t>(news.pid);
  rank.step = news.step;
  if (news.has_told) {
    rank.told =
        ToldError{.status = news.told_status, .of_all = news.told_of_all, .line = news.told_line};
  }
  rank.error.recall(news.last_lines);
  if (news.stopped && !rank.stopped) {
    rank.stopped = true;
    const bool counts =
        phase_ == Phase::running || phase_ == Phase::leaving || phase_ == Phase::blaming;
    if (counts) judge_stop(rank);
    return;
  }
  const std::int64_t time_ns =
      job_.nodes->own_time_of(node, news.time_ns) - (Channel::now_ns() - now_ns());
  rank.end = RankEnd{time_ns, news.by_signal, news.code};
  if (is_new) judge_end(rank);
}

void Supervisor::lose_node(int node, int status, std::string reason) {
  nodes_done_.resize(static_cast<std::size_t>(job_.placement.num_nodes()));
  nodes_done_[static_cast<std::size_t>(node)] = true;
  for (Rank& rank : ranks_) {
    if (rank.node == node && !rank.end) rank.lost = true;
  }
  if (!judges()) is_over_ = true;  // node 0 decides nothing any more
  const bool blames_another =
      phase_ == Phase::blaming && !ranks_[static_cast<std::size_t>(*verdict_.culprit)].stopped &&
      ranks_[static_cast<std::size_t>(*verdict_.culprit)].end->blames_another();
  const bool counts = phase_ == Phase::running || phase_ == Phase::leaving || blames_another;
  if (!counts) return;
  verdict_.culprit.reset();
  verdict_.lost = NodeFailure{.node = node, .status = status, .reason = std::move(reason)};
  verdict_.failed_ns = now_ns();
  abort_ranks();
}

}  // namespace launcher
