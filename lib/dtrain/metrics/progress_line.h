// Fits the parts of a line into its room, the most important first.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::metrics {

struct LinePart {
  std::string text;  ///< empty: not there
  /// If the line is too narrow, parts are dropped in descending order of rank, 0 last.
  int rank = 0;
  std::string brief = {};  ///< replaces `text` if the parts of rank 0 do not fit; or empty
};

/// Joins the parts with " | ", or with spaces if only that fits in `room` characters. Drops whole
/// parts that still do not fit, those of rank 0 from the back, since half a number misleads. Cuts
/// what is then too long.
[[nodiscard]] std::string fit_parts(std::vector<LinePart> parts, std::size_t room);

/// `text` with its lines broken between words where they are longer than `room` characters; what
/// follows is indented to the line's second column, or by two where it has none.
[[nodiscard]] std::string wrap_words(std::string_view text, std::size_t room);

}  // namespace dtrain::metrics
