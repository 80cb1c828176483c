// How the supervisor finds out which rank to blame, and ends the others.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "dtrain/net/message.h"
#include "launcher/supervisor.h"

namespace launcher {
namespace {

using namespace std::chrono_literals;

constexpr auto kBlameWindow = 150ms;
constexpr auto kSameErrorWindow = 500ms;  // taken from --abort-grace, as far as it is longer
constexpr auto kAnswerWindow = 800ms;     // taken from --abort-grace, too

}  // namespace

// --- a rank that fails ---------------------------------------------------------------------------

void Supervisor::judge_end(const Rank& rank) {
  if (phase_ == Phase::asking && rank.index == hangs_.suspect() && !rank.end->failed()) {
    withdraw_ask();
  }
  const bool waited_in_vain = rank.end->timed_out() && rank.has_records;
  const bool may_ask = phase_ == Phase::running || phase_ == Phase::blaming;
  if (may_ask && waited_in_vain) {
    ask_ranks(rank.index);
  } else if (phase_ == Phase::asking && rank.end->failed()) {
    if (!rank.end->timed_out() && !rank.end->blames_another()) return begin_failure(rank);
    if (HangWatch::all_have_answered(ranks_.all())) judge_hang();
  } else if (is_undisturbed() && rank.end->failed()) {
    begin_failure(rank);
  } else if (phase_ == Phase::running && rank.end->saved()) {
    nodes_.tell_all(NodeMessage::leaving);
    enter(Phase::leaving, job_.options.stop_grace);
  } else if (phase_ == Phase::blaming && rank.end->failed() && !rank.end->blames_another()) {
    begin_failure(rank);
  } else if (phase_ == Phase::aborting && verdict_.culprit &&
             explains(rank, ranks_.at(*verdict_.culprit))) {
    verdict_.culprit = rank.index;
  }
}

// A rank failed. While it is not clear whom to blame (blaming), it takes the place of one that
// blames another; after any other one it only shows that their errors differ.
void Supervisor::begin_failure(const Rank& culprit) {
  if (phase_ == Phase::blaming) {
    const Rank& first = ranks_.at(*verdict_.culprit);
    if (first.stopped || !first.end->blames_another()) {
      if (!same_error(culprit, first)) abort_ranks();
      return;
    }
  }
  verdict_.culprit = culprit.index;
  verdict_.failed_ns = culprit.end ? culprit.end->time_ns : now_ns();
  const bool blames_another = !culprit.stopped && culprit.end->blames_another();
  const bool may_be_of_all = !culprit.stopped && culprit.told && !culprit.told->of_all;
  if (!ranks_.any_running() || (!blames_another && !may_be_of_all)) return abort_ranks();
  const bool is_known = blames_another && (has_begun(ranks_.all()) || !culprit.told);
  enter(Phase::blaming, is_known ? kBlameWindow : kSameErrorWindow);
}

void Supervisor::abort_ranks() {
  const AbortOrder order = abort_order(verdict_, ranks_.all(), job_.placement);
  nodes_.tell_all(NodeMessage::abort, encode(order));
  obey_abort(order);
}

void Supervisor::obey_abort(const AbortOrder& order) {
  if (ranks_.any_running() && !order.quietly) {
    output_.say(fmt::format("rank {} {}; ending the others", order.rank, order.reason));
  }
  const std::string line =
      order.quietly ? "leave\n" : fmt::format("abort {} {}\n", order.rank, order.reason);
  ranks_.signal_groups(std::array{SIGCONT, SIGTERM}, line);
  const Duration grace = job_.options.abort_grace;
  const Duration spent = std::chrono::nanoseconds(now_ns() - verdict_.failed_ns) - kBlameWindow;
  enter(Phase::aborting, grace - std::clamp(spent, Duration(0), grace / 2));
}

// --- a job that stands still ---------------------------------------------------------------------

void Supervisor::on_sign_of_life(const Rank& rank, std::int64_t step_before) {
  // It saves, or has saved and its way out is slow, as where a disk is.
  const bool is_busy = rank.step == step_before;
  const bool may_take_longer =
      phase_ == Phase::stopping || (phase_ == Phase::leaving && is_coordinator());
  if (is_busy && may_take_longer) enter(phase_, job_.options.stop_grace);
  if (!is_coordinator()) return;
  hangs_.heard(rank.index, rank.step, active_.now());
  if (phase_ == Phase::asking && rank.index == hangs_.suspect()) withdraw_ask();  // it goes on
  const std::string late = stragglers_.look(ranks_.all(), dtrain::base::Clock::now());
  if (!late.empty()) output_.say(late);
}

bool Supervisor::watches_silence() const {
  return is_coordinator() && phase_ == Phase::running && !output_.is_held() &&
         !stopped_.is_suspended();
}

void Supervisor::check_heartbeats() {
  if (!watches_silence()) return;
  const auto silent = hangs_.find_silent(ranks_.all(), active_.now());
  if (!silent) return;
  for (Rank& rank : ranks_.all()) rank.forget_records();
  ask_ranks(*silent);
}

// What the ranks of a job that stands still answer tells whom they wait for.
void Supervisor::ask_ranks(int suspect) {
  hangs_.ask(suspect);
  verdict_.culprit.reset();
  verdict_.failed_ns = now_ns();
  for (Rank& rank : ranks_.all()) rank.forget_old_records();
  nodes_.tell_all(NodeMessage::ask);
  ask_own_ranks();
  enter(Phase::asking, kAnswerWindow);
  if (HangWatch::all_have_answered(ranks_.all())) judge_hang();
}

void Supervisor::ask_own_ranks() {
  for (const Rank& rank : ranks_.own()) {
    if (rank.running() && !rank.has_records && !rank.records_are_last) {
      JobRanks::tell(rank, "records\n");
    }
  }
}

// The suspect goes on after all; a rank that gave up meanwhile has failed nevertheless.
void Supervisor::withdraw_ask() {
  const Rank* first = nullptr;
  for (const Rank& rank : ranks_.all()) {
    if (!rank.end || !rank.end->failed()) continue;
    if (first == nullptr || rank.end->time_ns < first->end->time_ns) first = &rank;
  }
  if (first != nullptr) return begin_failure(*first);
  for (Rank& rank : ranks_.all()) rank.forget_records();
  phase_ = Phase::running;
  deadline_.reset();
}

void Supervisor::on_records(Rank& rank) {
  if (!rank.has_records) return;
  if (!is_coordinator()) {
    if (!nodes_.are_heard()) return;
    nodes_.tell_coordinator(NodeMessage::records,
                            dtrain::net::MessageWriter()
                                .number(static_cast<std::uint64_t>(rank.index))
                                .text(std::exchange(rank.records, {}))
                                .number(rank.records_are_last ? 1 : 0)
                                .bytes());
    // Sent again later, an old answer would pass for a new one.
    rank.has_records = false;
  } else if (phase_ == Phase::asking && HangWatch::all_have_answered(ranks_.all())) {
    judge_hang();
  }
}

void Supervisor::judge_hang() {
  const auto culprit = hangs_.judge(ranks_.all(), active_.now());
  if (!culprit) return withdraw_ask();
  verdict_.culprit = culprit;
  abort_ranks();
}

// Ranks whose output has no reader, and those that wait for them, have the limit once more.
void Supervisor::excuse_ranks() {
  if (!is_coordinator()) return nodes_.tell_coordinator(NodeMessage::held);
  if (phase_ == Phase::asking) withdraw_ask();
  for (const Rank& rank : ranks_.all()) hangs_.excuse(rank.index, active_.now());
}

}  // namespace launcher
