// Formats numbers for messages.
#pragma once

#include <cstdint>
#include <string>

namespace dtrain::base {

/// "12 B", "1.6 MiB".
[[nodiscard]] std::string readable_bytes(std::int64_t bytes);

/// "35 ms", "0.8 s", "12 s", "3 min 20 s", "2 h 5 min", "3 d 4 h"; never negative.
[[nodiscard]] std::string readable_time(double seconds);

}  // namespace dtrain::base
