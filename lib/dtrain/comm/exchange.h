// Exchanges short texts between all ranks.
#pragma once

#include <string>
#include <vector>

#include "dtrain/comm/process_group.h"

namespace dtrain::comm {

/// Every rank's text, by rank, on every rank. Costs the longest text for each rank.
///
/// Collective: every rank of `group`.
/// Throws:     what Work::wait throws.
[[nodiscard]] std::vector<std::string> exchange_texts(ProcessGroup& group, const std::string& text);

}  // namespace dtrain::comm
