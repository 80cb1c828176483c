#include "launcher/local/rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>

#include "dtrain/base/error.h"
#include "dtrain/base/text/text.h"
#include "launcher/local/rank_stream.h"

namespace launcher {
namespace {

constexpr std::size_t kMaxControlLine = 8192;

template <typename Number>
void parse(std::string_view text, Number& number) {
  std::from_chars(text.data(), text.data() + text.size(), number);
}

void append_record(Rank& rank, std::string_view word, std::string_view rest) {
  constexpr std::size_t kMostBytes = 65536;
  if (word == "where") {  // a response begins
    rank.forget_records();
    rank.records.heartbeat = rank.heartbeats;
  }
  RecordsResponse& response = rank.records;
  if (response.is_complete) return;
  const bool is_last = word == "records-last";
  const bool is_end = is_last || word == "records-end";
  // Truncates a longer response; its last line still counts.
  if (!is_end && response.text.size() > kMostBytes) return;
  response.text.append(word).append(" ").append(rest).append("\n");
  if (is_last) response.is_last = true;
  response.is_complete = is_end;
}

/// True if the line reported an error.
bool apply_control_line(Rank& rank, std::string_view line) {
  const std::string_view word = take_word(line);
  if (word == "progress") {
    parse(take_word(line), rank.step);
    parse(line, rank.waited_us);
    rank.step = std::max<std::int64_t>(rank.step, -1);
    ReportedCheckpoint& latest = rank.checkpoints.latest;
    if (rank.step < latest.step) latest = {};  // a script has begun another run
    rank.waited_us = std::max<std::int64_t>(rank.waited_us, 0);
    ++rank.heartbeats;
  } else if (word == "busy") {
    ++rank.heartbeats;
  } else if (word == "where" || word == "call" || word.starts_with("records-")) {
    append_record(rank, word, line);
  } else if (word == "run") {
    rank.checkpoints.run = dtrain::base::printable(take_word(line), 64);
  } else if (word == "committed") {
    CheckpointReports& reports = rank.checkpoints;
    std::int64_t step = -1;
    parse(take_word(line), step);
    reports.latest = {.step = std::max<std::int64_t>(step, -1),
                      .resume_advice = dtrain::base::printable(line),
                      .requeue_file = reports.requeue_file};
    reports.committed_steps.set(reports.run, reports.latest.step);
  } else if (word == "requeue-file") {
    if (line.starts_with('/')) rank.checkpoints.requeue_file = line;
  } else if (word == "plain-output") {
    rank.output.drop_prefix();
  } else if (word == "error" || word == "refused") {
    rank.reported_error.emplace().is_shared = word == "refused";
    parse(take_word(line), rank.reported_error->status);
    rank.reported_error->status = std::clamp(rank.reported_error->status, 0, 255);
    rank.reported_error->line = line;
    return true;
  }
  return false;
}

std::string without_numbers(std::string text) {
  std::erase_if(text, [](char c) { return c >= '0' && c <= '9'; });
  return text;
}

/// Returns whether the text begins with "rank NUMBER".
bool begins_with_name(std::string_view text, const std::string& name) {
  const bool begins = text.starts_with(name);
  return begins &&
         (text.size() == name.size() || text[name.size()] < '0' || text[name.size()] > '9');
}

/// Returns whether the lines differ only in the rank that each names: "rank 3 of 4 ...".
bool same_but_for_names(std::string_view one, int rank, std::string_view other, int other_rank) {
  const std::string name = fmt::format("rank {}", rank);
  const std::string other_name = fmt::format("rank {}", other_rank);
  while (!one.empty() && !other.empty()) {
    const bool are_names = begins_with_name(one, name) && begins_with_name(other, other_name);
    if (!are_names && one.front() != other.front()) return false;
    one.remove_prefix(are_names ? name.size() : 1);
    other.remove_prefix(are_names ? other_name.size() : 1);
  }
  return one.empty() && other.empty();
}

/// Precedence of an orphan's end: failed, saved, terminated, succeeded.
int weight_of(const RankEnd& end) {
  if (end.saved()) return 2;
  if (end.terminated()) return 1;
  return end.failed() ? 3 : 0;
}

}  // namespace

void Rank::take_orphan(const RankEnd& ended) {
  if (!end || !end->terminated()) return;
  if (!orphan || weight_of(ended) > weight_of(*orphan)) orphan = ended;
}

bool has_begun(const std::vector<Rank>& ranks) {
  return std::any_of(ranks.begin(), ranks.end(), [](const Rank& rank) { return rank.step >= 0; });
}

bool same_error(const Rank& rank, const Rank& culprit) {
  if (!rank.reported_error || !culprit.reported_error) return false;
  const ReportedError& one = *rank.reported_error;
  const ReportedError& other = *culprit.reported_error;
  constexpr int kMemory = static_cast<int>(dtrain::base::ErrorKind::memory);
  const bool are_full = one.status == kMemory && other.status == kMemory;
  return same_but_for_names(one.line, rank.index, other.line, culprit.index) ||
         (are_full && without_numbers(one.line) == without_numbers(other.line));
}

bool explains(const Rank& rank, const Rank& culprit) {
  const bool has_own = rank.end && rank.reported_error && !rank.reported_error->blames_another() &&
                       !rank.end->saved() && !rank.end->by_signal &&
                       rank.end->code == rank.reported_error->status;
  // The exit status of a stopped or hanging rank is irrelevant.
  const bool is_found = culprit.stopped || !culprit.hang.empty();
  return has_own && !is_found && culprit.end && culprit.end->blames_another();
}

bool read_control(Rank& rank, std::string_view bytes) {
  std::string& partial = rank.control_partial;
  partial.append(bytes);
  bool told = false;
  for (auto end = partial.find('\n'); end != std::string::npos; end = partial.find('\n')) {
    told |= apply_control_line(rank, std::string_view(partial).substr(0, end));
    partial.erase(0, end + 1);
  }
  if (partial.size() > kMaxControlLine) partial.clear();
  return told;
}

}  // namespace launcher
