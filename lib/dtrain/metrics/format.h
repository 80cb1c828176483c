// Formats numbers for people.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dtrain::metrics {

/// Formats a number of bytes: "1.6 MiB".
[[nodiscard]] std::string format_bytes(std::int64_t bytes);
[[nodiscard]] std::string format_count(std::int64_t count);  ///< "425,984"
/// "1 step", "1024 steps"
[[nodiscard]] std::string counted(std::int64_t count, std::string_view noun);
/// The shortest text that preserves every bit; "nan" for any NaN, because a NaN's sign depends on
/// the CPU.
[[nodiscard]] std::string format_number(double value);
[[nodiscard]] std::string format_duration(double seconds);   ///< "2:31", "1:02:03"
[[nodiscard]] std::string format_rate(double per_second);    ///< "12.3k"
[[nodiscard]] std::string format_step_time(double seconds);  ///< "44.7 ms", "1.25 s"

/// Makes a byte model's output valid text for the console and JSON: replaces invalid UTF-8 by
/// U+FFFD and control characters, except newlines, by '?'.
[[nodiscard]] std::string readable_text(std::string_view text);

}  // namespace dtrain::metrics
