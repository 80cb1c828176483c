#include "launcher/judge/failure_judge.h"

#include <signal.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/base/error.h"
#include "launcher/judge/stop_policy.h"
#include "support/messages.h"
#include "support/ranks/launcher_ranks.h"

namespace launcher::failure_judge_test {
namespace {

using dtrain::base::ErrorKind;
using dtrain::testing::Names;
using dtrain::testing::rank_of;
using namespace std::chrono_literals;

constexpr int kComm = static_cast<int>(ErrorKind::comm);
constexpr int kTimeout = static_cast<int>(ErrorKind::timeout);
constexpr int kSaved = static_cast<int>(ErrorKind::interrupted);

Placement placement_of(int num_nodes, int own_node) {
  Placement placement;
  placement.node_rank = own_node;
  placement.nodes = {{"hosta", 0, 2}};
  if (num_nodes > 1) placement.nodes.push_back({"hostb", 2, 2});
  return placement;
}

Options options_with_hang_timeout() {
  Options options;
  options.hang_timeout = 5s;
  return options;
}

/// The judge of a job on one or two nodes of two ranks each, as one of their launchers sees it.
class Job {
 public:
  explicit Job(int num_nodes = 1, int own_node = 0)
      : placement_(placement_of(num_nodes, own_node)) {
    for (int rank = 0; rank < placement_.world_size(); ++rank) {
      state.ranks.add(rank_of(rank, rank / 2));
    }
  }

  [[nodiscard]] Moment now() const {
    const Moment::Time time = Moment::Time() + time_;
    return {.active = time, .wall = time, .ns = std::chrono::nanoseconds(time_).count()};
  }
  void pass(std::chrono::milliseconds time) {
    time_ += time;
    if (state.deadline && now().active >= *state.deadline) judge.deadline_passed(now());
  }
  Rank& rank(int index) { return state.ranks.at(index); }
  void heartbeat(int index, std::int64_t step) {
    const std::int64_t before = std::exchange(rank(index).step, step);
    ++rank(index).heartbeats;
    judge.heartbeat(rank(index), before, now());
  }
  void end(int index, int status) { end(index, RankEnd{now().ns, false, status}); }
  void end(int index, RankEnd how) {
    rank(index).end = how;
    judge.rank_ended(rank(index), now());
  }
  void report_error(int index, int status, const std::string& line, bool is_shared = false) {
    rank(index).reported_error =
        ReportedError{.status = status, .is_shared = is_shared, .line = line};
  }
  void respond(int index, const std::string& calls) {
    rank(index).records = {.text = "where in backward of step 3\n" + calls + "records-end\n",
                           .is_complete = true,
                           .heartbeat = rank(index).heartbeats};
    judge.records_arrived(now());
  }
  /// The decisions of that type since the last call, which are the only ones that it leaves.
  template <typename Type>
  std::vector<Type> taken() {
    std::vector<Type> found;
    for (const Decision& decision : state.take_decisions()) {
      if (const Type* one = std::get_if<Type>(&decision)) found.push_back(*one);
    }
    return found;
  }
  /// The line of the order with which the ranks are ended; empty: no such order.
  std::string abort_line() {
    const auto orders = taken<SignalRanks>();
    return orders.empty() ? "" : orders.back().line;
  }

 private:
  Options options_ = options_with_hang_timeout();
  Placement placement_;
  Stragglers stragglers_;
  std::chrono::milliseconds time_{1000};

 public:
  JobState state{options_, placement_};
  FailureJudge judge{state, stragglers_};
  StopPolicy stops{state, judge};
};

// --- a rank that fails ---------------------------------------------------------------------------

TEST_CASE("A rank that exits with an error is the culprit, and the others are ended") {
  Job job;
  job.end(1, 7);
  CHECK(job.state.phase == Phase::aborting);
  CHECK(job.state.verdict.culprit == 1);
  CHECK_THAT(job.abort_line(), Names("abort 1", "status 7"));
  CHECK(status_of(job.state.verdict, job.state.ranks.all()) == 7);
}

TEST_CASE("A rank that a signal kills is the culprit, with the signal's status") {
  Job job;
  job.end(0, RankEnd{job.now().ns, true, SIGSEGV});
  CHECK(job.state.verdict.culprit == 0);
  CHECK_THAT(job.abort_line(), Names("abort 0", "SIGSEGV"));
  CHECK(status_of(job.state.verdict, job.state.ranks.all()) == 128 + SIGSEGV);
}

TEST_CASE("A rank that exits with zero leaves the others running") {
  Job job;
  job.end(0, 0);
  CHECK(job.state.phase == Phase::running);
  CHECK(job.state.take_decisions().empty());
}

TEST_CASE("A rank that blames another is not the culprit if that one fails in time") {
  Job job;
  job.heartbeat(0, 1);
  job.end(0, kComm);
  CHECK(job.state.phase == Phase::attributing);
  CHECK(job.abort_line().empty());
  job.pass(100ms);
  job.end(1, 7);
  CHECK(job.state.verdict.culprit == 1);
  CHECK_THAT(job.abort_line(), Names("abort 1"));
}

TEST_CASE("A rank that blames another is the culprit if no other fails in time") {
  Job job;
  job.heartbeat(0, 1);
  job.end(0, kComm);
  job.pass(200ms);
  CHECK(job.state.phase == Phase::aborting);
  CHECK(job.state.verdict.culprit == 0);
}

TEST_CASE("A late failure with an error of its own replaces a culprit that blames another") {
  Job job(2);
  job.heartbeat(0, 1);
  job.end(0, kComm);
  job.pass(200ms);
  REQUIRE(job.state.verdict.culprit == 0);
  job.report_error(1, 10, "error: device lost");
  job.end(1, 10);
  CHECK(job.state.verdict.culprit == 1);
}

TEST_CASE("An error that all ranks may share waits for theirs, and a different one ends the wait") {
  Job job(2);
  job.report_error(0, 2, "error: one");
  job.end(0, 2);
  CHECK(job.state.phase == Phase::attributing);
  job.report_error(1, 2, "error: one");
  job.end(1, 2);
  CHECK(job.state.phase == Phase::attributing);
  job.report_error(2, 3, "error: another");
  job.end(2, 3);
  CHECK(job.state.phase == Phase::aborting);
  CHECK(job.state.verdict.culprit == 0);
  CHECK(job.abort_line() == "leave\n");  // before the first step the error says it all
}

TEST_CASE("An error that a rank reports for all ranks ends them at once") {
  Job job;
  job.report_error(0, 2, "error: bad setting", true);
  job.end(0, 2);
  CHECK(job.state.phase == Phase::aborting);
}

TEST_CASE("Ranks that outlast --abort-grace are killed, and then given up") {
  Job job;
  job.end(0, 7);
  job.pass(2000ms);
  CHECK(job.state.phase == Phase::killing);
  CHECK(job.taken<KillRanks>().size() == 1);
  job.pass(300ms);
  CHECK(job.taken<BeginShutdown>().size() == 1);
}

TEST_CASE("The time of the attribution is deducted from --abort-grace") {
  Job job(2);
  job.report_error(0, 2, "error: one");
  job.end(0, 2);
  job.pass(500ms);
  REQUIRE(job.state.phase == Phase::aborting);
  CHECK(*job.state.deadline - job.now().active == 1650ms);
}

// --- ranks that save and exit, and signals -------------------------------------------------------

TEST_CASE("Ranks have --stop-grace to follow one that saved, anew with each heartbeat") {
  Job job;
  job.end(0, kSaved);
  CHECK(job.state.phase == Phase::exiting);
  job.pass(59s);
  job.heartbeat(1, -1);
  job.pass(59s);
  CHECK(job.state.phase == Phase::exiting);
  job.pass(1s);
  CHECK(job.state.phase == Phase::killing);
  CHECK(job.state.verdict.overdue);
}

TEST_CASE("SIGTERM lets the ranks save, and --stop-grace kills them") {
  Job job;
  job.stops.user_signal(SIGTERM, job.now());
  CHECK(job.state.phase == Phase::stopping);
  const auto orders = job.taken<SignalRanks>();
  REQUIRE(orders.size() == 1);
  CHECK(orders[0].line == "stop 15\n");
  CHECK(orders[0].signals == std::vector<int>{SIGTERM, SIGCONT});
  job.end(0, 7);  // while the job stops, no failure is looked for
  CHECK_FALSE(job.state.verdict.culprit);
  job.pass(60s);
  CHECK(job.state.phase == Phase::killing);
}

TEST_CASE("A second Ctrl-C kills the ranks, a first one after SIGTERM does not") {
  Job job;
  job.stops.user_signal(SIGTERM, job.now());
  job.stops.user_signal(SIGINT, job.now());
  CHECK(job.state.phase == Phase::stopping);
  job.stops.user_signal(SIGINT, job.now());
  CHECK(job.state.phase == Phase::killing);
}

TEST_CASE("A suspension reaches all nodes, and restarts the hang timeouts") {
  Job job(2);
  job.heartbeat(3, 1);
  job.pass(5900ms);
  job.stops.user_signal(SIGTSTP, job.now());
  CHECK(job.stops.stopped().is_suspended());
  CHECK_FALSE(job.stops.watches_heartbeats(false));
  const auto messages = job.taken<SendToNodes>();
  REQUIRE(messages.size() == 1);
  CHECK(messages[0].kind == NodeMessage::suspend);
  job.stops.user_signal(SIGCONT, job.now());
  job.pass(200ms);
  job.judge.check_silence(job.now());
  CHECK(job.state.phase == Phase::running);
}

TEST_CASE("A rank that stays stopped fails after two seconds") {
  Job job;
  job.stops.stopped().add(1, job.now().active);
  job.pass(1900ms);
  job.stops.check_stopped_ranks(job.now());
  CHECK(job.state.phase == Phase::running);
  job.pass(100ms);
  job.stops.check_stopped_ranks(job.now());
  CHECK(job.state.verdict.culprit == 1);
  CHECK(job.rank(1).stopped);
  CHECK(status_of(job.state.verdict, job.state.ranks.all()) == kTimeout);
}

// --- a job that hangs ----------------------------------------------------------------------------

/// Rank 0 is silent for longer than the limit; all ranks are asked.
void hang(Job& job) {
  job.heartbeat(0, 3);
  job.pass(4s);
  job.heartbeat(1, 3);
  job.pass(2s);
  job.judge.check_silence(job.now());
}

TEST_CASE("A silent rank has all ranks asked for their open collectives") {
  Job job;
  hang(job);
  CHECK(job.state.phase == Phase::diagnosing);
  CHECK(job.judge.hangs().suspect() == 0);
  const auto requests = job.taken<RequestRecords>();
  REQUIRE(requests.size() == 1);
  CHECK(requests[0].ranks == std::vector<int>{0, 1});
}

TEST_CASE("The culprit of a hang is the rank that the others wait for") {
  Job job;
  hang(job);
  job.respond(1, "call 5 all_reduce 16 open 6 -1 dp\n");
  CHECK(job.state.phase == Phase::diagnosing);
  job.respond(0, "call 4 all_reduce 16 ended 6 -1 dp\n");
  CHECK(job.state.verdict.culprit == 0);
  CHECK_THAT(job.abort_line(), Names("abort 0", "call 5", "all_reduce", "16 bytes"));
}

TEST_CASE("A suspect that does not respond in time is the culprit") {
  Job job;
  hang(job);
  job.respond(1, "call 5 all_reduce 16 open 6 -1 dp\n");
  job.pass(800ms);
  CHECK(job.state.phase == Phase::aborting);
  CHECK(job.state.verdict.culprit == 0);
  CHECK_THAT(job.rank(0).hang, Names("rank 1"));
}

TEST_CASE("A suspect that makes progress, or ends well, ends the diagnosis") {
  Job one;
  hang(one);
  one.heartbeat(0, 4);
  CHECK(one.state.phase == Phase::running);
  CHECK_FALSE(one.state.deadline);
  Job other;
  hang(other);
  other.end(0, 0);
  CHECK(other.state.phase == Phase::running);
}

TEST_CASE("A rank that fails during the diagnosis is the culprit") {
  Job job;
  hang(job);
  job.end(1, 7);
  CHECK(job.state.verdict.culprit == 1);
  CHECK(job.state.phase == Phase::aborting);
}

TEST_CASE("A rank that timed out in a collective is not the culprit if another one held it up") {
  Job job;
  job.heartbeat(1, 3);
  job.respond(1, "call 5 all_reduce 16 open 6 -1 dp\n");
  job.end(1, kTimeout);
  CHECK(job.state.phase == Phase::diagnosing);
  job.respond(0, "call 4 all_reduce 16 ended 6 -1 dp\n");
  CHECK(job.state.verdict.culprit == 0);
}

TEST_CASE("Output back-pressure ends a diagnosis") {
  Job job;
  hang(job);
  job.judge.reset_hang_timers(job.now());
  CHECK(job.state.phase == Phase::running);
  job.judge.check_silence(job.now());
  CHECK(job.state.phase == Phase::running);
}

// --- several nodes -------------------------------------------------------------------------------

TEST_CASE("A lost node ends the job, and its ranks have no known end") {
  Job job(2);
  job.judge.node_lost({.node = 1, .status = kComm, .reason = "is gone"}, job.now());
  CHECK(job.state.phase == Phase::aborting);
  CHECK(job.state.verdict.has_lost_node);
  CHECK(job.rank(2).lost);
  CHECK(job.rank(3).lost);
  CHECK_FALSE(job.rank(0).lost);
  CHECK_THAT(job.abort_line(), Names("abort 2", "node 1", "hostb"));
}

TEST_CASE("A node that is lost after a failure does not replace the culprit") {
  Job job(2);
  job.end(0, 7);
  job.judge.node_lost({.node = 1, .status = kComm, .reason = "is gone"}, job.now());
  CHECK(job.state.verdict.culprit == 0);
  CHECK_FALSE(job.state.verdict.lost);
}

TEST_CASE("A node that is lost explains a rank that blamed another") {
  Job job(2);
  job.heartbeat(0, 1);
  job.end(0, kComm);
  job.judge.node_lost({.node = 1, .status = kComm, .reason = "is gone"}, job.now());
  CHECK_FALSE(job.state.verdict.culprit);
  REQUIRE(job.state.verdict.lost);
  CHECK(job.state.verdict.lost->node == 1);
}

TEST_CASE("A launcher that loses node 0 ends its own ranks, and hears of no other node") {
  Job job(2, 1);
  job.judge.node_lost({.node = 0, .status = kComm, .reason = "is gone"}, job.now());
  CHECK(job.rank(0).lost);
  CHECK_FALSE(job.rank(2).lost);
  CHECK(job.state.phase == Phase::aborting);
  CHECK(job.taken<CloseNodeLink>().size() == 1);
}

TEST_CASE("Node 0's order ends the ranks of another node") {
  Job job(2, 1);
  const AbortOrder order{.rank = 0, .reason = "ended (status 7)", .quietly = false, .status = 7};
  job.judge.abort_ordered(order, job.now());
  CHECK(job.state.phase == Phase::aborting);
  CHECK_THAT(job.abort_line(), Names("abort 0", "status 7"));
  CHECK(status_of(job.state.verdict, job.state.ranks.all()) == 7);
}

TEST_CASE("A launcher asks node 0 to suspend the job") {
  Job job(2, 1);
  job.stops.user_signal(SIGTSTP, job.now());
  const auto messages = job.taken<SendToCoordinator>();
  REQUIRE(messages.size() == 1);
  CHECK(messages[0].kind == NodeMessage::suspend);
  CHECK_FALSE(job.stops.stopped().is_suspended());
}

}  // namespace
}  // namespace launcher::failure_judge_test
