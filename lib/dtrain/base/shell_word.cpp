#include "dtrain/base/shell_word.h"

namespace dtrain::base {

std::string shell_word(std::string_view word) {
  constexpr std::string_view kSpecial = " '\"\\$&|;<>*?(){}[]#~`!\t\r\n";
  if (!word.empty() && word.find_first_of(kSpecial) == word.npos) return std::string(word);
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

}  // namespace dtrain::base
