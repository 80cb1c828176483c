// What ranks exchange through the control plane: texts, settings to compare, the progress of long
// tasks, and clocks.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/comm/process_group.h"

namespace dtrain::comm {

/// Every rank's text, by rank, on every rank.
///
/// Collective: every rank of `group`.
/// Throws:     what Work::wait throws.
[[nodiscard]] std::vector<std::string> exchange_texts(ProcessGroup& group, const std::string& text);

/// The same on rank 0 alone; nothing on the others, which hold and send no more than their own.
[[nodiscard]] std::vector<std::string> gather_texts(ProcessGroup& group, const std::string& text);

/// Something all ranks should agree on: its name as a user knows it, and this rank's value.
using NamedValue = std::pair<std::string, std::string>;

/// Returns if every rank gave the same list. Costs 16 bytes per rank when they agree.
///
/// Collective: every rank of `group`.
/// Throws:     Error{usage}, the same on every rank, naming the first entry that differs, the two
///             ranks and their values.
void check_agreement(ProcessGroup& group, const std::vector<NamedValue>& values);

/// Runs `task` in a thread of its own, and returns when it has ended on all ranks. A rank may have
/// none (nullptr): it only waits for the others, without a thread. Meanwhile ranks report to each
/// other every half second, so that a slow rank is not taken for one that hangs. A rank whose task
/// does not end says once a minute that it has been `what` ("writing FILE"). `task` must not
/// communicate.
///
/// Collective: every rank of `group`.
/// Throws:     on a rank whose task throws, that; on the others Error{comm} saying that a rank
///             failed at `what`.
void run_long(ProcessGroup& group, std::string_view what, const std::function<void()>& task);

/// The same, where the group's first rank alone has the task.
void run_long_on_leader(ProcessGroup& group, std::string_view what,
                        const std::function<void()>& task);

/// Returns on every rank the text that `text` gives on the group's rank 0, however long that takes.
///
/// Collective: every rank of `group`.
/// Throws:     as run_long.
[[nodiscard]] std::string leader_text(ProcessGroup& group, std::string_view what,
                                      const std::function<std::string()>& text);

/// Reads a rank's clock.
using ReadClock = std::function<base::Clock::time_point()>;

/// Returns how far this rank's clock is ahead of that of rank 0, to half of the shortest of several
/// round trips; 0 on rank 0's host, where one clock counts for all.
///
/// Collective: every rank of `group`, which moves CPU tensors. host: names the host of this rank.
/// Throws:     what Work::wait throws.
[[nodiscard]] base::Clock::duration clock_offset(ProcessGroup& group, const std::string& host,
                                                 const ReadClock& now = &base::Clock::now);

}  // namespace dtrain::comm
