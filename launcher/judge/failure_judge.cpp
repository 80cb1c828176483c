#include "launcher/judge/failure_judge.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "dtrain/base/text/text.h"

namespace launcher {
namespace {

using namespace std::chrono_literals;
using Duration = JobState::Duration;

// With the default --abort-grace of 2 s, a job ends within 3 s of a failure: attribution, grace,
// kill, helper processes and output (launcher/shutdown.cpp limits the last two).
constexpr auto kAttributionWindow = 150ms;
constexpr auto kSameErrorWindow = 500ms;  // what exceeds the first is deducted from --abort-grace
constexpr auto kResponseWindow = 800ms;   // likewise
constexpr auto kKillLimit = 300ms;
// A killed rank that holds much memory or a device may take seconds to give it back.
constexpr auto kSlowEndLimit = 10s;

/// True if the culprit failed by itself, that is, without blaming another rank.
bool is_own_failure(const Rank& culprit) {
  return culprit.stopped || !culprit.hang.empty() || !culprit.end || !culprit.end->blames_another();
}

}  // namespace

FailureJudge::FailureJudge(JobState& state, Stragglers& stragglers)
    : state_(state),
      stragglers_(stragglers),
      hangs_(state.options.hang_timeout, state.placement.world_size()) {}

// --- a rank that fails ---------------------------------------------------------------------------

void FailureJudge::rank_ended(const Rank& rank, const Moment& now) {
  const Verdict& verdict = state_.verdict;
  if (state_.phase == Phase::diagnosing && rank.index == hangs_.suspect() && !rank.end->failed()) {
    cancel_diagnosis(now);
  }
  const Phase phase = state_.phase;
  const bool timed_out_waiting = rank.end->timed_out() && rank.records.is_complete;
  const bool may_diagnose = phase == Phase::running || phase == Phase::attributing;
  if (may_diagnose && timed_out_waiting) {
    diagnose(rank.index, now);
  } else if (phase == Phase::diagnosing && rank.end->failed()) {
    if (!rank.end->timed_out() && !rank.end->blames_another()) return begin_failure(rank, now);
    records_arrived(now);
  } else if (state_.is_undisturbed() && rank.end->failed()) {
    begin_failure(rank, now);
  } else if (phase == Phase::running && rank.end->saved()) {
    state_.decide(SendToNodes{.kind = NodeMessage::leaving});
    state_.enter(Phase::exiting, state_.options.stop_grace, now);
  } else if (phase == Phase::attributing && rank.end->failed() && !rank.end->blames_another()) {
    begin_failure(rank, now);
  } else if (phase == Phase::aborting && verdict.culprit &&
             explains(rank, state_.ranks.at(*verdict.culprit))) {
    state_.verdict.culprit = rank.index;
  }
}

void FailureJudge::rank_stopped(const Rank& rank, const Moment& now) {
  if (state_.is_undisturbed() || state_.phase == Phase::attributing) begin_failure(rank, now);
}

// During attribution, a rank that fails replaces a culprit that blames another. If the culprit
// blames no rank, another failure only shows that the errors differ.
void FailureJudge::begin_failure(const Rank& culprit, const Moment& now) {
  Verdict& verdict = state_.verdict;
  RankTable& ranks = state_.ranks;
  if (state_.phase == Phase::attributing) {
    const Rank& first = ranks.at(*verdict.culprit);
    if (first.stopped || !first.end->blames_another()) {
      if (!same_error(culprit, first)) abort_ranks(now);
      return;
    }
  }
  verdict.culprit = culprit.index;
  verdict.failed_ns = culprit.end ? culprit.end->time_ns : now.ns;
  const bool blames_another = !culprit.stopped && culprit.end->blames_another();
  const bool may_be_shared =
      !culprit.stopped && culprit.reported_error && !culprit.reported_error->is_shared;
  if (!ranks.any_running() || (!blames_another && !may_be_shared)) return abort_ranks(now);
  const bool is_known = blames_another && (has_begun(ranks.all()) || !culprit.reported_error);
  state_.enter(Phase::attributing,
               is_known ? Duration(kAttributionWindow) : Duration(kSameErrorWindow), now);
}

void FailureJudge::abort_ranks(const Moment& now) {
  const AbortOrder order = abort_order(state_.verdict, state_.ranks.all(), state_.placement);
  state_.decide(SendToNodes{.kind = NodeMessage::abort, .body = encode(order)});
  send_abort(order, now);
}

void FailureJudge::send_abort(const AbortOrder& order, const Moment& now) {
  if (state_.ranks.any_running() && !order.quietly) {
    state_.decide(Say{fmt::format("rank {} {}; ending the others", order.rank, order.reason)});
  }
  state_.decide(SignalRanks{
      .signals = {SIGCONT, SIGTERM},
      .line = order.quietly ? "leave\n" : fmt::format("abort {} {}\n", order.rank, order.reason)});
  const Duration grace = state_.options.abort_grace;
  const Duration spent =
      std::chrono::nanoseconds(now.ns - state_.verdict.failed_ns) - kAttributionWindow;
  state_.enter(Phase::aborting, grace - std::clamp(spent, Duration(0), grace / 2), now);
}

void FailureJudge::abort_ordered(const AbortOrder& order, const Moment& now) {
  if (state_.phase >= Phase::aborting) return;
  // Node 0's result replaces this one if it still arrives.
  state_.verdict.result =
      JobResult{.status = order.status,
                .failed = true,
                .line = fmt::format("failed: rank {} {}", order.rank, order.reason)};
  state_.verdict.failed_ns = now.ns;
  send_abort(order, now);
}

void FailureJudge::node_lost(NodeFailure failure, const Moment& now) {
  Verdict& verdict = state_.verdict;
  verdict.has_lost_node = true;
  for (Rank& rank : state_.ranks.all()) {
    // Without node 0 the state of all other nodes is unknown.
    const bool is_unknown = state_.is_coordinator() ? rank.node == failure.node
                                                    : rank.node != state_.placement.node_rank;
    if (is_unknown && !rank.end) rank.lost = true;
  }
  // Node 0 is lost, so it decides nothing more.
  if (!state_.is_coordinator()) state_.decide(CloseNodeLink{});
  if (!state_.is_undisturbed()) {
    // A rank that ended because of another's failure does not explain the end of the job.
    if (!verdict.culprit || is_own_failure(state_.ranks.at(*verdict.culprit))) return;
  }
  verdict.culprit.reset();
  verdict.lost = std::move(failure);
  if (state_.phase >= Phase::aborting) return;  // the ranks are being ended already
  verdict.failed_ns = now.ns;
  abort_ranks(now);
}

// --- a job that hangs ----------------------------------------------------------------------------

void FailureJudge::heartbeat(const Rank& rank, std::int64_t step_before, const Moment& now) {
  // A rank that is busy within one step is saving, or is slow to exit, for example because of a
  // disk.
  const bool is_busy = rank.step == step_before;
  const bool may_take_longer = state_.phase == Phase::stopping ||
                               (state_.phase == Phase::exiting && state_.is_coordinator());
  if (is_busy && may_take_longer) state_.enter(state_.phase, state_.options.stop_grace, now);
  if (!state_.is_coordinator()) return;
  hangs_.heartbeat(rank.index, rank.step, now.active);
  if (state_.phase == Phase::diagnosing && rank.index == hangs_.suspect()) cancel_diagnosis(now);
  std::string straggler = stragglers_.sample(state_.ranks.all(), now.wall);
  if (!straggler.empty()) state_.decide(Say{std::move(straggler)});
}

void FailureJudge::check_silence(const Moment& now) {
  const auto silent = hangs_.find_silent(state_.ranks.all(), now.active);
  if (!silent) return;
  for (Rank& rank : state_.ranks.all()) rank.forget_records();
  diagnose(*silent, now);
}

void FailureJudge::diagnose(int suspect, const Moment& now) {
  hangs_.set_suspect(suspect);
  state_.verdict.culprit.reset();
  state_.verdict.failed_ns = now.ns;
  for (Rank& rank : state_.ranks.all()) rank.forget_old_records();
  state_.decide(SendToNodes{.kind = NodeMessage::ask});
  request_records();
  state_.enter(Phase::diagnosing, kResponseWindow, now);
  records_arrived(now);
}

void FailureJudge::request_records() {
  RequestRecords request;
  for (const Rank& rank : state_.ranks.own()) {
    if (rank.running() && !rank.records.is_complete && !rank.records.is_last) {
      request.ranks.push_back(rank.index);
    }
  }
  state_.decide(std::move(request));
}

void FailureJudge::records_arrived(const Moment& now) {
  if (state_.phase == Phase::diagnosing && HangWatch::all_have_responded(state_.ranks.all())) {
    judge_hang(now);
  }
}

void FailureJudge::cancel_diagnosis(const Moment& now) {
  const Rank* first = nullptr;
  for (const Rank& rank : state_.ranks.all()) {
    if (!rank.end || !rank.end->failed()) continue;
    if (first == nullptr || rank.end->time_ns < first->end->time_ns) first = &rank;
  }
  if (first != nullptr) return begin_failure(*first, now);
  for (Rank& rank : state_.ranks.all()) rank.forget_records();
  state_.phase = Phase::running;
  state_.deadline.reset();
}

void FailureJudge::judge_hang(const Moment& now) {
  const auto culprit = hangs_.find_culprit(state_.ranks.all(), now.active);
  if (!culprit) return cancel_diagnosis(now);
  state_.verdict.culprit = culprit;
  abort_ranks(now);
}

void FailureJudge::reset_hang_timers(const Moment& now) {
  if (!state_.is_coordinator()) return state_.decide(SendToCoordinator{.kind = NodeMessage::held});
  if (state_.phase == Phase::diagnosing) cancel_diagnosis(now);
  for (const Rank& rank : state_.ranks.all()) hangs_.reset_timer(rank.index, now.active);
}

// --- grace periods that are over -----------------------------------------------------------------

void FailureJudge::deadline_passed(const Moment& now) {
  state_.deadline.reset();
  switch (state_.phase) {
    case Phase::running:
    case Phase::shutdown:
      break;
    case Phase::exiting:
      state_.verdict.overdue = true;
      kill_ranks(now);
      break;
    case Phase::diagnosing:
      judge_hang(now);
      break;
    case Phase::attributing:
      abort_ranks(now);
      break;
    case Phase::stopping:
      state_.decide(Say{fmt::format(
          "the ranks did not finish saving within {} (--stop-grace) and get SIGKILL; if a step "
          "takes longer, raise --stop-grace, or save regularly (dtrain's --checkpoint-every)",
          dtrain::base::readable_time(state_.options.stop_grace.count()))});
      kill_ranks(now);
      break;
    case Phase::aborting:
      kill_ranks(now);
      break;
    case Phase::killing:  // what survived SIGKILL hangs inside the kernel
      if (extend_kill_timeout(now)) break;
      if (state_.is_coordinator()) state_.decide(AnnounceResult{});
      state_.decide(CloseNodeLink{.answers_heartbeats = true});
      state_.decide(BeginShutdown{});
      break;
  }
}

void FailureJudge::kill_ranks(const Moment& now) {
  state_.decide(
      SendToNodes{.kind = NodeMessage::kill, .body = std::to_string(state_.verdict.stop_signal)});
  state_.decide(KillRanks{});
  state_.enter(Phase::killing, kKillLimit, now);
}

void FailureJudge::kill_ordered(int signal, const Moment& now) {
  if (state_.phase >= Phase::killing) return;
  if (state_.is_undisturbed() && signal != 0) state_.verdict.stop_signal = signal;
  if (state_.phase == Phase::exiting && signal == 0) state_.verdict.overdue = true;
  kill_ranks(now);
}

// Extends the timeout once, for ranks that free much memory, if a restart may follow or a user
// stopped the job.
bool FailureJudge::extend_kill_timeout(const Moment& now) {
  const Verdict& verdict = state_.verdict;
  const bool may_restart = state_.options.max_restarts > 0 && verdict.failed() &&
                           !verdict.has_lost_node && verdict.request == 0;
  const bool is_stop = verdict.stop_signal != 0 && !verdict.failed();
  if ((!may_restart && !is_stop) || std::exchange(extended_kill_timeout_, true)) return false;
  for (const Rank& rank : state_.ranks.all()) {
    if (!state_.is_coordinator() || !rank.running()) continue;
    state_.decide(
        Say{fmt::format("rank {} has not ended yet after SIGKILL; waiting up to {} s for it",
                        rank.index, kSlowEndLimit.count())});
  }
  state_.enter(Phase::killing, kSlowEndLimit, now);
  return true;
}

}  // namespace launcher
