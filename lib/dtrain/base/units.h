// Reads sizes and durations with their units. Units are read in any case, and spaces may stand
// between a number and its unit.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace dtrain::base {

/// Bytes of "4G", "4Gi", "4GiB" (powers of 1024), "4GB" (powers of 1000), "1.5g", "4096" or "4e9";
/// units are K, M, G and T. Empty for any other text, and for less than a byte that is not 0.
[[nodiscard]] std::optional<std::int64_t> bytes_in(std::string_view text);

/// The text without a "/s" at its end, which a rate may have: "25GB/s".
[[nodiscard]] std::string_view without_per_second(std::string_view text);

/// Seconds of a duration: "90", "90s", "10min", "2h30m", "1d", or one of SLURM's forms that have a
/// colon or a dash: "1:50" (minutes and seconds), "1:50:00", "1-02", "1-02:00", "1-02:00:00"
/// (days first). Empty for any other text.
[[nodiscard]] std::optional<double> seconds_in(std::string_view text);

/// How messages and help describe what seconds_in reads.
inline constexpr std::string_view kDurationForms =
    "a duration: 90s, 10m, 1h30m, 1:30:00 or 1-12:00:00, or seconds";

}  // namespace dtrain::base
