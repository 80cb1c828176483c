// Reads lines of words.
#pragma once

#include <algorithm>
#include <string_view>

namespace launcher {

/// Takes a word and the space after it off the front.
inline std::string_view take_word(std::string_view& line) {
  const std::string_view word = line.substr(0, line.find(' '));
  line.remove_prefix(std::min(line.size(), word.size() + 1));
  return word;
}

}  // namespace launcher
