// Runs work that one rank does for all, e.g. writing a file.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "dtrain/comm/process_group.h"

namespace dtrain::comm {

/// Runs `task` on the group's rank 0 while the others wait; on return everybody knows that it is
/// done.
///
/// Collective: every rank of `group`.
/// Throws:     on rank 0 what `task` throws; on the others Error{comm} saying that rank 0 failed at
/// `what`.
void on_leader(ProcessGroup& group, std::string_view what, const std::function<void()>& task);

/// Returns on every rank the text that `text` gives on the group's rank 0.
///
/// Collective: every rank of `group`.
/// Throws:     as on_leader.
[[nodiscard]] std::string leader_text(ProcessGroup& group, std::string_view what,
                                      const std::function<std::string()>& text);

}  // namespace dtrain::comm
