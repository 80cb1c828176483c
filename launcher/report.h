// Reports how a job ended.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/rank.h"
#include "launcher/shared_output.h"

namespace launcher {

/// Why the job ended other than with zeros.
struct Verdict {
  std::optional<int> culprit;  // the rank that failed first
  std::int64_t failed_ns = 0;  // when that was seen, since the start of the ranks
  int stop_signal = 0;         // what the user sent; 0: nothing
  int request = 0;             // the last signal that asks_to_stop, however late; 0: none
  bool overdue = false;        // ranks did not end in time after one had saved and left

  [[nodiscard]] bool clean() const { return !culprit && stop_signal == 0 && !overdue; }
};

/// "exited with status 3", "was killed by signal 9 (SIGKILL)", "was stopped ...".
[[nodiscard]] std::string describe(const Rank& rank);

/// dtrun's exit status (docs/exit-status.md).
[[nodiscard]] int status_of(const Verdict& verdict, const std::vector<Rank>& ranks);

/// The lines after a job that failed or was stopped: the culprit's last words, the ranks that ended
/// because of it, and last the one line that tells which rank, how, where and why.
void report(const Verdict& verdict, const std::vector<Rank>& ranks, SharedOutput& console);

}  // namespace launcher
