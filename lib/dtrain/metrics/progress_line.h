// Fits the parts of a line into its room, the most important first.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::metrics {

struct LinePart {
  std::string text;  ///< empty: not there
  /// Parts leave a line that is too narrow in descending order of rank; 0 stays longest.
  int rank = 0;
  std::string brief = {};  ///< stands for the text once the parts of rank 0 have no room; or empty
};

/// The parts with " | " between them, or with a blank where that lets them fit in `room`
/// characters; parts that still have no room are left out, the last of rank 0 first, since half a
/// number misleads. What is then too long is cut.
[[nodiscard]] std::string fit_parts(std::vector<LinePart> parts, std::size_t room);

/// `text` with its lines broken between words where they are longer than `room` characters; what
/// follows is indented to the line's second column, or by two where it has none.
[[nodiscard]] std::string wrap_words(std::string_view text, std::size_t room);

}  // namespace dtrain::metrics
