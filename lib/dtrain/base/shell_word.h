// Writes commands that a shell reads back as they are: the run reports and dtrain plan show some.
#pragma once

#include <string>
#include <string_view>

namespace dtrain::base {

/// `word` as a shell takes it for one word: in single quotes unless it is plain.
[[nodiscard]] std::string shell_word(std::string_view word);

}  // namespace dtrain::base
