#include "launcher/judge/verdict.h"

#include <fmt/format.h>
#include <signal.h>
#include <string.h>

#include <algorithm>

#include "dtrain/base/error.h"
#include "dtrain/base/text/text.h"
#include "launcher/local/processes.h"

namespace launcher {
namespace {

/// True if the error may concern this rank alone, even at the start: other ranks may have more
/// memory, or a device.
bool error_is_of_rank(const ReportedError& error) {
  using dtrain::base::ErrorKind;
  return error.status == static_cast<int>(ErrorKind::memory) ||
         error.status == static_cast<int>(ErrorKind::device);
}

bool mentions_error(const std::string& line) {
  constexpr const char* kWords[] = {"error", "exception", "assert", "terminate", "fatal", "panic"};
  return std::ranges::any_of(
      kWords, [&](const char* word) { return ::strcasestr(line.c_str(), word) != nullptr; });
}

std::string reason_of(const Rank& culprit) {
  if (!culprit.hang.empty()) return "";
  if (culprit.stopped) return "; a stopped rank holds up all others, so the job was ended";
  if (culprit.end && culprit.end->by_signal && culprit.end->code == SIGKILL) {
    return "; SIGKILL comes from a person, a batch system, the kernel's OOM killer or the program "
           "itself";
  }
  if (culprit.error.last_lines().empty() || !explains_itself(culprit)) return "";
  // The output of a rank that a signal killed does not give the reason.
  const bool by_signal = culprit.end && culprit.end->by_signal;
  return (by_signal ? "; the last line of its standard error: " : ": ") +
         dtrain::base::printable(culprit.error.last_lines().back());
}

/// "pid 12 ", with the space; empty if its node has not reported the rank yet.
std::string pid_of(const Rank& rank) {
  return rank.pid > 0 ? fmt::format("pid {} ", rank.pid) : std::string();
}

/// "pid 12 on hosta"; with several nodes also the node.
std::string place_of(const Rank& rank, const Placement& placement) {
  if (!placement.has_several_nodes()) return fmt::format("{}on {}", pid_of(rank), host_name());
  return fmt::format("{}on {}, node {}", pid_of(rank), placement.node(rank.node).host, rank.node);
}

/// The ranks of a lost node fail together, so all are named.
std::string line_of_lost(const Verdict& verdict, const Placement& placement) {
  const NodePlace& place = placement.node(verdict.lost->node);
  const int last_rank = place.first_rank + place.num_ranks - 1;
  return fmt::format("failed: {} with rank{} {}{} {}", name_of(placement, verdict.lost->node),
                     place.num_ranks > 1 ? "s" : "", place.first_rank,
                     place.num_ranks > 1 ? fmt::format(" to {}", last_rank) : "",
                     verdict.lost->reason);
}

std::string line_of_culprit(const Verdict& verdict, const std::vector<Rank>& ranks,
                            const Placement& placement) {
  const Rank& culprit = ranks[static_cast<std::size_t>(*verdict.culprit)];
  if (is_shared_error(culprit, ranks)) {  // one node has printed it already
    const bool is_told = placement.has_several_nodes() && !culprit.reported_error->blames_another();
    return is_told ? culprit.reported_error->line : "";
  }
  const bool is_hang = !culprit.hang.empty();
  const bool tells_step = culprit.step >= 0 && !(is_hang && culprit.records.is_complete);
  const std::string step = tells_step ? fmt::format(" at step {}", culprit.step) : "";
  return fmt::format("failed: rank {} ({}) {}{} {}{}{}", culprit.index,
                     place_of(culprit, placement), describe(culprit),
                     is_hang ? "; the job had run for" : " after", readable_ns(verdict.failed_ns),
                     step, reason_of(culprit));
}

std::string end_of(const Rank& rank) {
  if (rank.end && rank.end->saved()) {
    return fmt::format("saved and stopped (status {})", rank.end->code);
  }
  if (rank.end) return describe(*rank.end);
  return rank.lost ? "(exit status unknown)" : fmt::format("({})", describe_running(rank));
}

std::string ends_of(const std::vector<Rank>& ranks) {
  std::vector<std::string> parts;
  for (const Rank& rank : ranks) {
    parts.push_back(fmt::format("rank {} {}", rank.index, end_of(rank)));
  }
  return dtrain::base::list_text(parts);
}

}  // namespace

std::string describe(const RankEnd& end) {
  if (!end.by_signal) return fmt::format("exited with status {}", end.code);
  return fmt::format("was killed by signal {} ({})", end.code, signal_name(end.code));
}

std::string describe(const Rank& rank) {
  if (!rank.hang.empty()) return rank.hang;
  if (rank.stopped) return "was stopped (SIGSTOP or the like)";
  // The rank's own error line names the rank that it waited for.
  const bool gave_up = rank.end && rank.end->timed_out() && rank.reported_error;
  if (gave_up) return fmt::format("gave up waiting (status {})", rank.end->code);
  return rank.end ? describe(*rank.end) : "is running";
}

std::string describe_running(const Rank& rank) {
  return rank.pid > 0 ? fmt::format("pid {} was killed, but has not ended yet", rank.pid)
                      : "its node has not reported its start";
}

bool is_shared_error(const Rank& culprit, const std::vector<Rank>& ranks) {
  if (!culprit.reported_error || culprit.stopped || !culprit.hang.empty()) return false;
  const bool begun = has_begun(ranks) || error_is_of_rank(*culprit.reported_error);
  return culprit.reported_error->is_shared ||
         std::all_of(ranks.begin(), ranks.end(), [&](const Rank& rank) {
           return same_error(rank, culprit) ||
                  (!begun && rank.reported_error && rank.reported_error->blames_another());
         });
}

bool explains_itself(const Rank& rank) {
  const auto& lines = rank.error.last_lines();
  const bool by_signal = rank.end && rank.end->by_signal;
  return !by_signal || std::any_of(lines.begin(), lines.end(), mentions_error);
}

int status_of(const Verdict& verdict, const std::vector<Rank>& ranks) {
  constexpr int kTimeout = static_cast<int>(dtrain::base::ErrorKind::timeout);
  if (verdict.result) return verdict.result->status;
  if (verdict.lost) return verdict.lost->status;
  if (verdict.culprit) {
    const Rank& culprit = ranks[static_cast<std::size_t>(*verdict.culprit)];
    const bool held_up = culprit.stopped || !culprit.hang.empty();
    return held_up || !culprit.end ? kTimeout : culprit.end->exit_status();
  }
  const bool peaceful = std::all_of(
      ranks.begin(), ranks.end(), [](const Rank& rank) { return rank.end && !rank.end->failed(); });
  if (!peaceful) return verdict.stop_signal != 0 ? 128 + verdict.stop_signal : kTimeout;
  const bool saved =
      std::any_of(ranks.begin(), ranks.end(), [](const Rank& r) { return r.end->saved(); });
  return saved ? static_cast<int>(dtrain::base::ErrorKind::interrupted) : 0;
}

AbortOrder abort_order(const Verdict& verdict, const std::vector<Rank>& ranks,
                       const Placement& placement) {
  AbortOrder order;
  order.status = status_of(verdict, ranks);
  if (verdict.lost) {
    order.rank = placement.node(verdict.lost->node).first_rank;
    order.reason = fmt::format("is on {}, which {}", name_of(placement, verdict.lost->node),
                               verdict.lost->reason);
    return order;
  }
  const Rank& culprit = ranks[static_cast<std::size_t>(*verdict.culprit)];
  order.rank = culprit.index;
  order.reason = describe(culprit);
  // If the job has not begun, the culprit's own line suffices.
  order.quietly = culprit.reported_error && !has_begun(ranks);
  return order;
}

std::string last_line(const Verdict& verdict, const std::vector<Rank>& ranks,
                      const Placement& placement) {
  if (verdict.result) return verdict.result->line;
  if (verdict.lost) return line_of_lost(verdict, placement);
  if (verdict.culprit) return line_of_culprit(verdict, ranks, placement);
  if (verdict.stop_signal != 0) {
    return fmt::format("stopped by {}: {}", signal_name(verdict.stop_signal), ends_of(ranks));
  }
  if (!verdict.overdue) return {};
  return "ended the ranks that kept running after another had saved and exited: " + ends_of(ranks);
}

JobResult job_result(const Verdict& verdict, const std::vector<Rank>& ranks,
                     const Placement& placement) {
  return {.status = status_of(verdict, ranks),
          .failed = verdict.failed() || verdict.overdue,
          .line = last_line(verdict, ranks, placement)};
}

ReportedCheckpoint newest_checkpoint(const std::vector<Rank>& ranks) {
  ReportedCheckpoint newest;
  for (const Rank& rank : ranks) {
    const ReportedCheckpoint& latest = rank.checkpoints.latest;
    if (latest.step > newest.step) newest = latest;
  }
  return newest;
}

AttemptResult attempt_result(const Verdict& verdict, const std::vector<Rank>& ranks,
                             StepClock::Time start, StepClock& steps) {
  AttemptResult end;
  end.status = status_of(verdict, ranks);
  end.has_failed = verdict.culprit || verdict.lost;
  end.has_lost_node = verdict.has_lost_node;
  end.request = verdict.request;
  end.how = fmt::format("ended with status {}", end.status);
  if (verdict.culprit) {
    const Rank& culprit = ranks[static_cast<std::size_t>(*verdict.culprit)];
    end.how = fmt::format("rank {} {}", culprit.index, describe(culprit));
    end.culprit = culprit.index;
    end.node = culprit.node;
  } else if (verdict.lost) {
    end.node = verdict.lost->node;
  }
  if (end.has_failed) steps.fail(start + std::chrono::nanoseconds(verdict.failed_ns));
  end.duration = dtrain::base::Clock::now() - start;
  end.recovery = steps.recovery();
  end.checkpoint = newest_checkpoint(ranks);
  for (const Rank& rank : ranks) {
    const CommittedSteps& committed = rank.checkpoints.committed_steps;
    end.is_left_behind |= rank.running();
    end.is_reporting |= rank.step >= 0 || !committed.empty() || rank.reported_error.has_value();
    end.step = std::max(end.step, rank.step);
    end.committed_steps.update(committed);
  }
  return end;
}

}  // namespace launcher
