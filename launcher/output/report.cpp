#include "launcher/output/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>

#include "dtrain/base/error.h"
#include "dtrain/base/text/text.h"

namespace launcher {
namespace {

/// Prints once each line in which a rank blames another, in case nothing else is known. `except` is
/// a rank whose line is printed elsewhere.
void report_blames(const std::optional<int>& except, const std::vector<Rank>& ranks,
                   SharedOutput& console) {
  const auto is_reported_here = [&](const Rank& rank) {
    return rank.reported_error && rank.reported_error->blames_another() && rank.index != except;
  };
  for (const Rank& rank : ranks) {
    if (!is_reported_here(rank)) continue;
    const auto first = std::find_if(ranks.begin(), ranks.end(), [&](const Rank& other) {
      return is_reported_here(other) && same_error(other, rank);
    });
    if (&*first == &rank)
      console.line(Stream::error, rank.error.prefix(), rank.reported_error->line);
  }
}

/// The other ranks, in the order of their deaths.
std::string victims(const Verdict& verdict, const std::vector<Rank>& ranks) {
  std::vector<const Rank*> dead;
  std::vector<std::string> parts;
  for (const Rank& rank : ranks) {
    if (rank.index == verdict.culprit || rank.lost) continue;
    if (!rank.end) {
      parts.push_back(fmt::format("rank {} ({})", rank.index, describe_running(rank)));
    } else if (rank.end->failed() || rank.end->time_ns >= verdict.failed_ns) {
      dead.push_back(&rank);
    }
  }
  std::sort(dead.begin(), dead.end(),
            [](const Rank* a, const Rank* b) { return a->end->time_ns < b->end->time_ns; });
  for (const Rank* rank : dead) {
    const std::int64_t after_ns = rank->end->time_ns - verdict.failed_ns;
    parts.push_back(fmt::format("rank {} ({}, {} {})", rank->index, describe(*rank->end),
                                readable_ns(std::abs(after_ns)),
                                after_ns < 0 ? "before" : "later"));
  }
  return dtrain::base::list_text(parts);
}

void report_victims(const Verdict& verdict, const std::vector<Rank>& ranks, SharedOutput& console) {
  const std::string others = victims(verdict, ranks);
  if (others.empty()) return;
  console.line(Stream::error, console.own_prefix(), "ended as a result: " + others);
}

void report_culprit(const Verdict& verdict, const std::vector<Rank>& ranks, SharedOutput& console) {
  const Rank& culprit = ranks[static_cast<std::size_t>(*verdict.culprit)];
  if (is_shared_error(culprit, ranks)) {  // already printed, and no single rank caused it
    if (culprit.reported_error->blames_another()) report_blames({}, ranks, console);
    return;
  }
  report_blames(verdict.culprit, ranks, console);
  if (!culprit.reported_error && explains_itself(culprit) &&
      culprit.error.last_lines().size() > 1) {  // a single one is in the last line below
    console.line(Stream::error, console.own_prefix(),
                 fmt::format("last lines of rank {}'s standard error:", culprit.index));
    for (const std::string& text : culprit.error.last_lines()) {
      console.line(Stream::error, console.own_prefix() + "  | ", text);
    }
  }
  if (has_begun(ranks) || !culprit.reported_error) report_victims(verdict, ranks, console);
}

}  // namespace

void report(const Verdict& verdict, const std::vector<Rank>& ranks, const Placement& placement,
            bool may_restart, SharedOutput& console) {
  if (const std::int64_t dropped = console.lines_dropped(); dropped > 0) {
    console.line(Stream::error, console.own_prefix(),
                 fmt::format("{} lines were dropped: dtrun's output had no reader", dropped));
  }
  const std::string line = last_line(verdict, ranks, placement);
  if (verdict.culprit && !verdict.result) {
    report_culprit(verdict, ranks, console);
  } else if (!verdict.result || !line.empty()) {
    report_blames({}, ranks, console);
  }
  if (verdict.lost && !verdict.result) report_victims(verdict, ranks, console);
  constexpr int kSaved = static_cast<int>(dtrain::base::ErrorKind::interrupted);
  const int status = status_of(verdict, ranks);
  const std::string advice = newest_checkpoint(ranks).resume_advice;
  if (status != 0 && status != kSaved && !may_restart && !advice.empty()) {
    console.line(Stream::error, console.own_prefix(), advice);
  }
  const bool is_shown = std::any_of(ranks.begin(), ranks.end(), [&](const Rank& rank) {
    return rank.node == placement.node_rank && rank.reported_error &&
           rank.reported_error->line == line;
  });
  if (!line.empty() && !is_shown) console.line(Stream::error, console.own_prefix(), line);
}

}  // namespace launcher
