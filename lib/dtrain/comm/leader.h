// Shares what one rank finds for all, e.g. in a file.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "dtrain/comm/process_group.h"

namespace dtrain::comm {

/// Returns on every rank the text that `text` gives on the group's rank 0, however long that takes.
///
/// Collective: every rank of `group`.
/// Throws:     as run_long_on_leader (long_task.h).
[[nodiscard]] std::string leader_text(ProcessGroup& group, std::string_view what,
                                      const std::function<std::string()>& text);

}  // namespace dtrain::comm
