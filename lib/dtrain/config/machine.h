// Settings of the machine group that are more than a word or a number.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace dtrain::config {

/// Bytes of "2GiB", "500MB", "1.5GB" or "4096"; units are kB, MB, GB, TB (powers of 1000) and KiB,
/// MiB, GiB, TiB (of 1024), in any case. Nothing for other texts.
[[nodiscard]] std::optional<std::int64_t> parse_bytes(std::string_view text);

/// A value of --recompute.
struct RecomputeSetting {
  enum class Kind { none, level, every, automatic };
  Kind kind = Kind::none;
  std::int64_t group_size = 0;  ///< levels, of every:K
};

/// "none", "level", "every:K" (K at least 1), "auto". Nothing for other texts.
[[nodiscard]] std::optional<RecomputeSetting> parse_recompute(std::string_view text);

}  // namespace dtrain::config
