// Finds the rank that the others wait for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace launcher {

/// A rank's oldest open call of one group, or its last one.
struct GroupCall {
  std::uint64_t number = 0;  // within the group
  std::string op;
  std::int64_t bytes = 0;
  bool is_open = false;
  bool is_queued = false;  // open, but not begun
  double seconds = 0;      // since it was made
  int awaited = -1;        // the rank that it needs at this moment; -1: none, or not known
  std::string group;       // named alike in all ranks
};

/// What a rank answered when it was asked where it is.
struct RankRecords {
  std::string where;  // "in the backward pass, block 3, of step 12"
  std::vector<GroupCall> calls;
  bool is_whole = false;  // the answer has come to its end
};

/// text: an answer (docs/dtrun.md); lines of another form are passed over.
[[nodiscard]] RankRecords parse_records(std::string_view text);

/// Whom a job that stands still waits for.
struct HangVerdict {
  int culprit = 0;
  std::string text;  // what it did not do, and where it was
};

/// records: of every rank, none for one that was not asked, e.g. since it has ended. A rank waits
/// for those of a group that have not made its open call, and for the one that it says it needs;
/// the culprit is one that gave no answer where others did, or else one that is waited for and
/// waits for nobody.
///
/// Returns: nothing where nobody waits for anybody.
[[nodiscard]] std::optional<HangVerdict> hang_verdict(
    const std::vector<std::optional<RankRecords>>& records);

}  // namespace launcher
