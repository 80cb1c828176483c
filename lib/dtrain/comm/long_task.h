// Runs work that takes longer than a collective call may wait, e.g. reading from a slow disk.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "dtrain/comm/process_group.h"

namespace dtrain::comm {

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

}  // namespace dtrain::comm
