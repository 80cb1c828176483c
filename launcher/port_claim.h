// A port that one dtrun of this machine uses is refused to the next.
#pragma once

#include <string>

#include "launcher/descriptor.h"

namespace launcher {

/// Marks `port` of `address` as this job's until the descriptor is closed. Binding it does not: the
/// port is shared with rank 0 (SO_REUSEADDR), and so with a second job. 0, a free port, needs none.
///
/// Throws: Error{port} naming the process of the dtrun that has it.
[[nodiscard]] Descriptor claim_port(const std::string& address, int port);

}  // namespace launcher
