// Finds out which process listens at a port.
#pragma once

#include <string>

namespace launcher {

/// "python3 (pid 123)", "user 33", or "another program" where the system does not tell.
[[nodiscard]] std::string holder_of_port(int port);

}  // namespace launcher
