// Writes lists of ranks as the few runs that they are: groups lie along the axes of a mesh. Private
// to comm/rendezvous.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dtrain/net/message.h"

namespace dtrain::comm {

/// Three numbers for each run of equally spaced ranks.
void write_ranks(net::MessageWriter& writer, const std::vector<std::int64_t>& ranks);

/// Reads up to the message's end; nothing for what write_ranks did not write, or for more than
/// `most` ranks.
[[nodiscard]] std::optional<std::vector<std::int64_t>> read_ranks(net::MessageReader& reader,
                                                                  std::int64_t most);

}  // namespace dtrain::comm
