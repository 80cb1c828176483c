// Reads numbers.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace dtrain::base {

/// The number that fills the text; nothing where it is none, or has more around it.
template <typename Number>
[[nodiscard]] std::optional<Number> number_in(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool fills_text = error == std::errc() && end == text.data() + text.size();
  return fills_text ? std::optional(value) : std::nullopt;
}

}  // namespace dtrain::base
