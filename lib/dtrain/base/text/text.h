// Formats values for messages, splits strings, and sanitises untrusted text for output.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::base {

/// Formats a number of bytes for people: "12 B", "1.6 MiB".
[[nodiscard]] std::string readable_bytes(std::int64_t bytes);

/// "35 ms", "0.8 s", "12 s", "3 min 20 s", "2 h 5 min", "3 d 4 h"; never negative.
[[nodiscard]] std::string readable_time(double seconds);

/// "a, b, c"; lists at most 20 and counts the others.
[[nodiscard]] std::string list_text(const std::vector<std::string>& parts,
                                    std::string_view separator = ", ");

/// "rank 3", "ranks 0, 1, 3", as list_text. ranks: a container of at least one number.
template <typename Ranks>
[[nodiscard]] std::string ranks_text(const Ranks& ranks) {
  std::vector<std::string> numbers;
  for (const auto rank : ranks) numbers.push_back(fmt::format("{}", rank));
  return fmt::format("rank{} {}", numbers.size() == 1 ? "" : "s", list_text(numbers));
}

/// Splits `text` at each separator: n separators give n + 1 parts, which may be empty.
[[nodiscard]] std::vector<std::string_view> split(std::string_view text, char separator);

/// Replaces control characters by '?', including C1, so that text cannot control a terminal;
/// truncates it to `max_bytes`.
[[nodiscard]] std::string printable(std::string_view text, std::size_t max_bytes = 4096);

/// Encodes `text` as an ASCII JSON string; other characters become '?'.
[[nodiscard]] std::string json_text(std::string_view text);

/// Quotes `word` for a shell: in single quotes unless it is plain.
[[nodiscard]] std::string shell_word(std::string_view word);

}  // namespace dtrain::base
