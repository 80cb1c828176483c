// Formats numbers for people.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dtrain::metrics {

[[nodiscard]] std::string format_bytes(std::int64_t bytes);  ///< "1.6 MiB"
[[nodiscard]] std::string format_count(std::int64_t count);  ///< "425,984"
/// "1 step", "1024 steps"
[[nodiscard]] std::string counted(std::int64_t count, std::string_view noun);
/// Every bit of a number. A NaN's sign means nothing, and depends on the processor: "nan".
[[nodiscard]] std::string format_number(double value);
[[nodiscard]] std::string format_duration(double seconds);   ///< "2:31", "1:02:03"
[[nodiscard]] std::string format_rate(double per_second);    ///< "12.3k"
[[nodiscard]] std::string format_step_time(double seconds);  ///< "44.7 ms", "1.25 s"

/// What a byte model has written, for people and JSON: bytes that are no UTF-8 become U+FFFD,
/// control characters '?'; lines stay.
[[nodiscard]] std::string readable_text(std::string_view text);

}  // namespace dtrain::metrics
