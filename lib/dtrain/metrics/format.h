// Formats numbers for people.
#pragma once

#include <cstdint>
#include <string>

namespace dtrain::metrics {

[[nodiscard]] std::string format_bytes(std::int64_t bytes);  ///< "1.6 MiB"
[[nodiscard]] std::string format_count(std::int64_t count);  ///< "425,984"
[[nodiscard]] std::string format_duration(double seconds);   ///< "2:31", "1:02:03"
[[nodiscard]] std::string format_rate(double per_second);    ///< "12.3k"

}  // namespace dtrain::metrics
