// Exchanges short texts between all ranks.
#pragma once

#include <string>
#include <vector>

#include "dtrain/comm/process_group.h"

namespace dtrain::comm {

/// Every rank's text, by rank, on every rank.
///
/// Collective: every rank of `group`.
/// Throws:     what Work::wait throws.
[[nodiscard]] std::vector<std::string> exchange_texts(ProcessGroup& group, const std::string& text);

/// The same on rank 0 alone; nothing on the others, which hold and send no more than their own.
[[nodiscard]] std::vector<std::string> gather_texts(ProcessGroup& group, const std::string& text);

}  // namespace dtrain::comm
