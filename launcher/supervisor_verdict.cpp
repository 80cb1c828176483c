// How the supervisor finds out which rank to blame, and ends the others.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <utility>

#include "dtrain/base/readable.h"
#include "launcher/hang_verdict.h"
#include "launcher/pipe.h"
#include "launcher/supervisor.h"

namespace launcher {
namespace {

using namespace std::chrono_literals;

constexpr auto kBlameWindow = 150ms;
constexpr auto kSameErrorWindow = 500ms;  // taken from --abort-grace, as far as it is longer
constexpr auto kAnswerWindow = 800ms;     // taken from --abort-grace, too

/// What is wrong with a silent rank where nobody waits for it.
std::string silence_text(std::chrono::duration<double> limit, const RankRecords& records) {
  return fmt::format("made no progress for {} (--hang-timeout){}",
                     dtrain::base::readable_time(limit.count()),
                     records.where.empty() ? "" : "; it was " + records.where);
}

}  // namespace

// --- a rank that fails ---------------------------------------------------------------------------

void Supervisor::judge_end(const Rank& rank) {
  if (phase_ == Phase::asking && rank.index == suspect_ && !rank.end->failed()) withdraw_ask();
  const bool waited_in_vain = rank.end->timed_out() && rank.has_records;
  const bool may_ask = phase_ == Phase::running || phase_ == Phase::blaming;
  if (may_ask && waited_in_vain) {
    ask_ranks(rank.index);
  } else if (phase_ == Phase::asking && rank.end->failed()) {
    if (!waited_in_vain && !rank.end->blames_another()) return begin_failure(rank);
    if (all_have_answered()) judge_hang();
  } else if (is_undisturbed() && rank.end->failed()) {
    begin_failure(rank);
  } else if (phase_ == Phase::running && rank.end->saved()) {
    tell_nodes(NodeMessage::leaving);
    enter(Phase::leaving, job_.options.stop_grace);
  } else if (phase_ == Phase::blaming && rank.end->failed() && !rank.end->blames_another()) {
    blame(rank);
  } else if (phase_ == Phase::aborting && verdict_.culprit &&
             explains(rank, ranks_[static_cast<std::size_t>(*verdict_.culprit)])) {
    verdict_.culprit = rank.index;
  }
}

// Another rank failed while it was not clear whose failure came first.
void Supervisor::blame(const Rank& rank) {
  const Rank& culprit = ranks_[static_cast<std::size_t>(*verdict_.culprit)];
  if (culprit.stopped || !culprit.end->blames_another()) {
    if (!same_error(rank, culprit)) abort_ranks();
  } else {
    begin_failure(rank);
  }
}

bool Supervisor::watches_ranks() const {
  return is_undisturbed() &&
         (!start_errors_.empty() || hangs_.watches_any() || !stopped_since_.empty());
}

void Supervisor::judge_stop(const Rank& rank) {
  if (phase_ == Phase::blaming) {
    blame(rank);
  } else {
    begin_failure(rank);
  }
}

void Supervisor::begin_failure(const Rank& culprit) {
  verdict_.culprit = culprit.index;
  verdict_.failed_ns = culprit.end ? culprit.end->time_ns : now_ns();
  const bool blames_another = !culprit.stopped && culprit.end->blames_another();
  const bool may_be_of_all = !culprit.stopped && culprit.told && !culprit.told->of_all;
  if (any_running() && (blames_another || may_be_of_all)) {
    const bool is_known = blames_another && (has_begun(ranks_) || !culprit.told);
    enter(Phase::blaming, is_known ? kBlameWindow : kSameErrorWindow);
  } else {
    abort_ranks();
  }
}

void Supervisor::abort_ranks() {
  const AbortOrder order = abort_order(verdict_, ranks_, job_.placement);
  tell_nodes(NodeMessage::abort, encode(order));
  obey_abort(order);
}

void Supervisor::obey_abort(const AbortOrder& order) {
  if (any_running() && !order.quietly)
    say(fmt::format("rank {} {}; ending the others", order.rank, order.reason));
  const std::string line =
      order.quietly ? "leave\n" : fmt::format("abort {} {}\n", order.rank, order.reason);
  for (const Rank& rank : own_ranks()) {
    if (!rank.running()) continue;
    tell(rank, line);
    ::kill(-rank.pid, SIGCONT);
    ::kill(-rank.pid, SIGTERM);
  }
  const Duration grace = job_.options.abort_grace;
  const Duration spent = std::chrono::nanoseconds(now_ns() - verdict_.failed_ns) - kBlameWindow;
  enter(Phase::aborting, grace - std::clamp(spent, Duration(0), grace / 2));
}

// --- a job that stands still ---------------------------------------------------------------------

void Supervisor::on_sign_of_life(const Rank& rank, std::int64_t step_before) {
  // It saves, or has saved and its way out is slow, as where a disk is.
  const bool is_busy = rank.step == step_before;
  const bool may_take_longer = phase_ == Phase::stopping || (phase_ == Phase::leaving && judges());
  if (is_busy && may_take_longer) enter(phase_, job_.options.stop_grace);
  if (!judges()) return;
  const auto now = dtrain::base::Clock::now();
  hangs_.heard(rank.index, rank.step, active_.now());
  if (phase_ == Phase::asking && rank.index == suspect_) withdraw_ask();  // it goes on
  const std::string late = stragglers_.look(ranks_, now);
  if (!late.empty()) say(late);
}

bool Supervisor::watches_silence() const {
  return judges() && phase_ == Phase::running && !output_held_ && !is_suspended_;
}

std::optional<Supervisor::Time> Supervisor::next_deadline() const {
  std::optional<Time> next = deadline_;
  if (watches_silence() && silence_) next = std::min(next.value_or(Time::max()), silence_->until);
  return next ? std::optional(active_.on_wall(*next)) : std::nullopt;
}

// Signs of life only put off the end of a silence. So what was found holds for a while: with
// thousands of ranks a look at each event would cost more than all else.
void Supervisor::look_for_silence() {
  constexpr std::chrono::milliseconds kBetweenLooks(100);
  if (!watches_silence()) return;
  const auto now = active_.now();
  if (silence_ && now < silence_->until && now - looked_ < kBetweenLooks) return;
  silence_ = hangs_.longest_silence(ranks_);
  looked_ = now;
  if (!silence_ || now < silence_->until) return;
  for (Rank& rank : ranks_) rank.forget_records();
  ask_ranks(silence_->rank);
}

// What the ranks of a job that stands still answer tells whom they wait for.
void Supervisor::ask_ranks(int suspect) {
  suspect_ = suspect;
  verdict_.culprit.reset();
  verdict_.failed_ns = now_ns();
  for (Rank& rank : ranks_) rank.forget_old_records();
  tell_nodes(NodeMessage::ask);
  ask_own_ranks();
  enter(Phase::asking, kAnswerWindow);
  if (all_have_answered()) judge_hang();
}

// The suspect goes on after all; a rank that gave up meanwhile has failed nevertheless.
void Supervisor::withdraw_ask() {
  const Rank* first = nullptr;
  for (const Rank& rank : ranks_) {
    if (!rank.end || !rank.end->failed()) continue;
    if (first == nullptr || rank.end->time_ns < first->end->time_ns) first = &rank;
  }
  if (first != nullptr) return begin_failure(*first);
  for (Rank& rank : ranks_) rank.forget_records();
  phase_ = Phase::running;
  deadline_.reset();
}

void Supervisor::ask_own_ranks() {
  for (const Rank& rank : own_ranks()) {
    if (rank.running() && !rank.has_records) tell(rank, "records\n");
  }
}

// On another node than the judge's.
void Supervisor::obey_ask() {
  if (output_held_) return job_.nodes->send(0, NodeMessage::held, {});
  for (Rank& rank : own_ranks()) {
    if (rank.running()) rank.forget_records();
  }
  ask_own_ranks();
}

// Of ranks whose output has no reader, and of those that wait for them.
void Supervisor::excuse_ranks() {
  if (!judges()) return job_.nodes->send(0, NodeMessage::held, {});
  if (phase_ == Phase::asking) withdraw_ask();
  for (const Rank& rank : ranks_) hangs_.excuse(rank.index, active_.now());
}

bool Supervisor::all_have_answered() const {
  return std::ranges::none_of(ranks_,
                              [](const Rank& rank) { return rank.running() && !rank.has_records; });
}

void Supervisor::on_records(Rank& rank) {
  if (!rank.has_records) return;
  if (!judges()) return tell_records(rank);
  if (phase_ == Phase::asking && all_have_answered()) judge_hang();
}

// All silent ranks get the limit once more.
void Supervisor::dismiss_hang() {
  withdraw_ask();
  const auto now = active_.now();
  for (const Rank& rank : ranks_) {
    if (!hangs_.is_alive(rank.index, now)) hangs_.excuse(rank.index, now);
  }
}

void Supervisor::judge_hang() {
  const bool is_hang = !ranks_[static_cast<std::size_t>(suspect_)].end;
  const auto now = active_.now();
  const auto is_alive_and_mute = [&](const Rank& rank) {
    return rank.running() && !rank.has_records && hangs_.is_alive(rank.index, now);
  };
  // Without the answer of a slow rank the others' answers prove nothing.
  if (is_hang && std::ranges::any_of(ranks_, is_alive_and_mute)) return dismiss_hang();
  std::vector<std::optional<RankRecords>> records;
  for (const Rank& rank : ranks_) {
    const bool counts = rank.running() || rank.has_records;
    records.push_back(counts ? std::optional(parse_records(rank.records)) : std::nullopt);
  }
  const auto found = hang_verdict(records);
  Rank& culprit = ranks_[static_cast<std::size_t>(found ? found->culprit : suspect_)];
  if (!found && culprit.end) return withdraw_ask();
  // The others wait for a rank that makes progress, such as one that reads from a slow disk.
  if (is_hang && hangs_.is_alive(culprit.index, now)) return dismiss_hang();
  culprit.hang =
      found ? found->text
            : silence_text(hangs_.limit(), *records[static_cast<std::size_t>(culprit.index)]);
  verdict_.culprit = culprit.index;
  abort_ranks();
}

}  // namespace launcher
