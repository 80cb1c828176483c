// Lists things in one line.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::base {

/// "a, b, c"; of more than 20 the first ones and the number of the others.
[[nodiscard]] inline std::string list_text(const std::vector<std::string>& parts,
                                           std::string_view separator = ", ") {
  constexpr std::size_t kShown = 20;
  const auto end = parts.begin() + static_cast<std::ptrdiff_t>(std::min(parts.size(), kShown));
  std::string text = fmt::format("{}", fmt::join(parts.begin(), end, separator));
  if (parts.size() > kShown) text += fmt::format("{}and {} more", separator, parts.size() - kShown);
  return text;
}

/// "rank 3", "ranks 0, 1, 3", as list_text. ranks: a container of at least one number.
template <typename Ranks>
[[nodiscard]] std::string ranks_text(const Ranks& ranks) {
  std::vector<std::string> numbers;
  for (const auto rank : ranks) numbers.push_back(fmt::format("{}", rank));
  return fmt::format("rank{} {}", numbers.size() == 1 ? "" : "s", list_text(numbers));
}

}  // namespace dtrain::base
