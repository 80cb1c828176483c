// Times and intervals as people write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace dtrain::config {

/// Seconds of "90s", "10m", "1h30m", "1d"; a bare number means seconds. Nothing for other texts.
[[nodiscard]] std::optional<double> parse_duration(std::string_view text);

/// How often something happens; never if both are 0.
struct Interval {
  std::int64_t steps = 0;
  double seconds = 0;
  bool at_the_end = true;  ///< it also happens when all is done

  [[nodiscard]] bool is_never() const { return steps == 0 && seconds == 0; }
};

/// "100" means steps, a number with a unit time, "none" never and not at the end either. Nothing
/// for other texts.
[[nodiscard]] std::optional<Interval> parse_interval(std::string_view text);

/// Sequences of "256", at least 1; of "all", the largest number there is. Nothing for other texts.
[[nodiscard]] std::optional<std::int64_t> parse_sequences(std::string_view text);

}  // namespace dtrain::config
