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
  int peer = -1;  // rank of the other side of a send or recv, root of a broadcast; -1: all
  std::int64_t bytes = 0;
  bool is_open = false;
  double seconds = 0;  // since it was made
  std::string group;   // named alike in all ranks
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
/// for those of a group that have not made its open call, or for the peer of its send or receive;
/// the culprit is one that gave no answer where others did, or else one that is waited for and
/// waits for nobody.
///
/// Returns: nothing where nobody waits for anybody.
[[nodiscard]] std::optional<HangVerdict> hang_verdict(
    const std::vector<std::optional<RankRecords>>& records);

}  // namespace launcher
