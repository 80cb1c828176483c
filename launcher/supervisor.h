// Supervises a job from the start of its ranks to the end of its last process.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/base/clock.h"
#include "dtrain/base/io/descriptor.h"
#include "launcher/clocks.h"
#include "launcher/job.h"
#include "launcher/judge/hang_watch.h"
#include "launcher/judge/stragglers.h"
#include "launcher/local/guard.h"
#include "launcher/nodes/channel.h"
#include "launcher/output/job_output.h"
#include "launcher/output/report.h"

namespace launcher {

/// Starts the ranks of one attempt to run a job and stays until no process of it is left.
///
/// One thread waits for events (a rank's end or stop, output, control lines, signals passed on by
/// the guard) and for one deadline; nothing it does blocks but
/// ending what the ranks have started, which takes a second at most. A phase only ever moves
/// forward:
///
///   running -> leaving   a rank has saved and left (status 9), the others follow, within
///                        --stop-grace of the last time that one said that it is busy
///           -> stopping  SIGINT or SIGTERM: the ranks save, within --stop-grace of the same
///           -> asking    no step is done any more: where is each rank, and who waits for whom?
///           -> blaming   a rank ended with status 4, "another rank failed": which one? Or it told
///                        its error: is it that of all?
///           -> aborting  a rank failed: the others have --abort-grace to end
///           -> killing   they had their time
///   -> leftovers (what the ranks have started), then their SIGTERM -> draining (output,
///   logs first) -> done
///
/// With several nodes node 0's launcher is the coordinator: the others report to it what became of
/// their ranks and obey its orders. `leftovers` begins when the ranks of all nodes have ended.
class Supervisor {
 public:
  /// job: its door is handed to the ranks. steps and stragglers: take the steps of this attempt.
  Supervisor(PreparedJob& job, const GuardLink& guard, StepClock& steps, Stragglers& stragglers);

  /// Throws: as JobRanks::start.
  [[nodiscard]] AttemptEnd run();

 private:
  enum class Phase {
    running,
    leaving,
    asking,
    stopping,
    blaming,
    aborting,
    killing,
    leftovers,
    leftovers_term,
    writing_logs,
    draining,
    done
  };
  using Time = dtrain::base::Clock::time_point;
  using Duration = std::chrono::duration<double>;
  /// For a disk of logs that does not answer.
  static constexpr std::chrono::milliseconds kLogLimit{150};

  // The loop.
  void start_ranks();
  void watch(int fd, std::uint64_t tag) const;
  void unwatch(int fd) const;
  void watch_output(bool watches);
  /// By dtrain::base::Clock.
  [[nodiscard]] std::optional<Time> next_deadline() const;
  void wait_for_events();
  void handle(std::uint64_t tag);
  void advance();
  void on_deadline();
  void enter(Phase phase, Duration limit);

  void hold_back_output();
  void kill_ranks();

  // What happens to this launcher and to its ranks (supervisor_events.cpp).
  void on_guard();
  void on_signal(int signal);
  void stop_ranks(int signal);
  void suspend_ranks(bool suspends);
  void on_child();
  void on_stopped(Rank& rank, int signal);
  void check_stopped_ranks();
  void on_end(Rank& rank);
  bool on_control(Rank& rank);

  // Whom to blame (supervisor_verdict.cpp).
  void judge_end(const Rank& rank);
  void begin_failure(const Rank& culprit);
  void abort_ranks();
  void obey_abort(const AbortOrder& order);
  /// step_before: the rank's before that sign.
  void on_sign_of_life(const Rank& rank, std::int64_t step_before);
  [[nodiscard]] bool watches_silence() const;
  void check_heartbeats();
  void ask_ranks(int suspect);
  void ask_own_ranks();
  void withdraw_ask();
  void on_records(Rank& rank);
  void judge_hang();
  void excuse_ranks();

  // A job of several nodes (supervisor_nodes.cpp).
  void notify_started();
  void notify_coordinator(Rank& rank);
  void report_progress(Rank& rank);
  void on_nodes();
  void take(const NodeEvent& event);
  void take_from_node(const NodeEvent& event);
  void take_from_coordinator(const NodeEvent& event);
  void take_news(int node, const RankNews& news);
  void lose_node(int node, int status, std::string reason);
  [[nodiscard]] bool job_has_ended();
  void announce_decision();
  void stop_listening();

  // The end of what is left.
  [[nodiscard]] bool extend_kill_timeout();
  void end_leftovers();
  void kill_leftovers();
  void finish_output();
  void finish_logs();

  /// Returns whether nothing has failed, as far as is known, and nobody wants the job to stop.
  [[nodiscard]] bool is_undisturbed() const { return phase_ <= Phase::asking; }
  [[nodiscard]] bool is_coordinator() const { return nodes_.is_coordinator(); }
  [[nodiscard]] std::int64_t now_ns() const;

  PreparedJob& job_;
  const GuardLink& guard_;
  StepClock& steps_;
  Stragglers& stragglers_;
  JobOutput output_;
  JobRanks ranks_;
  JobNodes nodes_;
  HangWatch hangs_;
  StoppedRanks stopped_;
  ActiveClock active_;  // of hangs_, stopped_ and deadline_
  dtrain::base::Descriptor epoll_;
  dtrain::base::Descriptor child_signals_;
  Time start_;
  Phase phase_ = Phase::running;
  std::optional<Time> deadline_;  // by active_
  Verdict verdict_;
  bool is_interrupted_ = false;  // this launcher has got a SIGINT
  bool extended_kill_timeout_ = false;
};

}  // namespace launcher
