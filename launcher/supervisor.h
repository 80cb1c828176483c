// Supervises a job from the start of its ranks to the end of its last process.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/base/clock.h"
#include "launcher/active_clock.h"
#include "launcher/attempt_end.h"
#include "launcher/guard.h"
#include "launcher/hang_watch.h"
#include "launcher/job.h"
#include "launcher/report.h"
#include "launcher/step_clock.h"
#include "launcher/stragglers.h"

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
/// With several nodes node 0's launcher is the judge: the others send it what became of their ranks
/// and obey its orders. `leftovers` begins when the ranks of all nodes have ended.
class Supervisor {
 public:
  /// job: its door is handed to the ranks. steps and stragglers: take the steps of this attempt.
  Supervisor(PreparedJob& job, const GuardLink& guard, StepClock& steps, Stragglers& stragglers);

  /// Throws: as start_rank when a rank cannot be started; the others are gone by then.
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

  void start_ranks();
  void watch(int fd, std::uint64_t tag, std::uint32_t events) const;
  void unwatch(int fd) const;

  void wait_for_events();
  void handle(std::uint64_t tag);
  void advance();
  void on_deadline();

  void on_guard();
  void on_signal(int signal);
  void on_resize();
  void on_child();
  void reap_orphans();
  void on_end(Rank& rank);
  void judge_end(const Rank& rank);
  void on_stopped(Rank& rank, int signal);
  void judge_stop(const Rank& rank);
  /// Blames ranks that have been stopped for kStopLimit.
  void look_at_stopped_ranks();
  bool on_control(Rank& rank);
  void on_output(RankStream& stream);
  void show_error(Rank& rank);
  void show_start_errors();
  void look_at_start_errors();
  void hold_back_output();

  void stop_ranks(int signal);
  /// Handles Ctrl-Z on this node, and the continuation of this dtrun.
  void on_terminal_stop(bool suspends);
  /// Suspends or continues the ranks of this node; on node 0 those of all nodes.
  void suspend_ranks(bool suspends);

  // Whom to blame (supervisor_verdict.cpp).
  /// step_before: the rank's before that sign.
  void on_sign_of_life(const Rank& rank, std::int64_t step_before);
  void on_records(Rank& rank);
  void look_for_silence();
  [[nodiscard]] bool watches_silence() const;
  [[nodiscard]] bool watches_ranks() const;
  void ask_ranks(int suspect);
  void withdraw_ask();
  void ask_own_ranks();
  void obey_ask();
  void excuse_ranks();
  [[nodiscard]] bool all_have_answered() const;
  void judge_hang();
  void dismiss_hang();
  void begin_failure(const Rank& culprit);
  void blame(const Rank& rank);
  void abort_ranks();
  void obey_abort(const AbortOrder& order);

  void tell(const Rank& rank, std::string_view line) const;
  void kill_ranks();
  void kill_leftovers();
  /// Extends the kill timeout once for ranks that free much memory, if a restart may follow or a
  /// user stopped the job.
  [[nodiscard]] bool extend_kill_timeout();
  void end_leftovers();
  void finish_output();
  void warn_of_logs();
  void finish_logs();

  // A job of several nodes (supervisor_nodes.cpp).
  void on_nodes();
  void take(const NodeEvent& event);
  void take_from_node(const NodeEvent& event);
  void take_from_judge(const NodeEvent& event);
  void take_news(int node, const RankNews& news);
  void obey_kill(int signal);
  [[nodiscard]] bool culprit_blames_another() const;
  void lose_node(int node, int status, std::string reason);
  void tell_judge(Rank& rank);
  void tell_begun();
  void tell_progress(Rank& rank);
  void tell_records(Rank& rank);
  void tell_nodes(NodeMessage kind, std::string_view body = {});
  void add_far_ranks(int node);
  [[nodiscard]] bool job_has_ended();
  void tell_decision();
  void stop_listening();

  void enter(Phase phase, Duration limit);
  /// By dtrain::base::Clock.
  [[nodiscard]] std::optional<Time> next_deadline() const;
  /// Returns whether nothing has failed, as far as is known, and nobody wants the job to stop.
  [[nodiscard]] bool is_undisturbed() const { return phase_ <= Phase::asking; }
  void warn(std::string_view text) {
    console_.line(Stream::error, console_.own_prefix() + "warning: ", text);
  }
  void say(std::string_view text) { console_.line(Stream::error, console_.own_prefix(), text); }
  /// Returns whether this launcher decides how the job ends.
  [[nodiscard]] bool judges() const { return job_.placement.node_rank == 0; }
  /// The ranks that this launcher has started; ranks_ holds those of all nodes.
  [[nodiscard]] std::span<Rank> own_ranks();
  [[nodiscard]] bool any_running();
  /// Returns whether a process group of the own ranks has processes left.
  [[nodiscard]] bool any_group_running();
  /// From now on the ends of what shells left behind count as those of the ranks.
  void take_orphans();
  [[nodiscard]] std::int64_t now_ns() const;

  PreparedJob& job_;
  const GuardLink& guard_;
  StepClock& steps_;
  Stragglers& stragglers_;
  ActiveClock active_;  // of hangs_, of stopped ranks and of deadline_
  HangWatch hangs_;
  int suspect_ = 0;  // whose silence or end made this launcher ask
  SharedOutput console_;
  LogWriter logs_;
  dtrain::base::Descriptor epoll_;
  dtrain::base::Descriptor child_signals_;
  std::vector<Rank> ranks_;
  std::size_t first_running_ = 0;  // those before it do not run, as any_running() has found
  Time start_;
  Phase phase_ = Phase::running;
  std::optional<Time> deadline_;  // by active_
  Verdict verdict_;
  std::vector<bool> nodes_done_;  // of node 0: whose ranks have all ended, or which are lost
  bool done_is_told_ = false;     // of the others: node 0 knows that the own ranks have ended
  bool is_over_ = false;          // nothing that another node says changes the end any more
  bool is_interrupted_ = false;   // this launcher has got a SIGINT
  bool extended_kill_timeout_ = false;
  bool is_suspended_ = false;  // by Ctrl-Z
  int suspensions_ = 0;
  std::map<int, Time> stopped_since_;  // of own ranks that are stopped, by active_
  /// Errors that ended the start, with what stands before them: shown when the ranks have ended,
  /// behind the notes of others.
  std::vector<std::pair<std::string, std::string>> start_errors_;
  dtrain::base::Clock::time_point start_error_time_;  // of the first
  std::optional<HangWatch::Silence> silence_;         // as last looked for
  Time looked_;                                       // by active_, when that was
  bool output_held_ = false;  // the console or the logs have too much waiting
};

}  // namespace launcher
