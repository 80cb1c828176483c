#include <catch2/catch.hpp>

#include "dtrain/base/text.h"

namespace shell_word_test {
namespace {

using dtrain::base::shell_word;

TEST_CASE("A shell reads each word back as it was") {
  CHECK(shell_word("runs/a-1.txt") == "runs/a-1.txt");
  CHECK(shell_word("Once upon") == "'Once upon'");
  CHECK(shell_word("it's") == "'it'\\''s'");
  CHECK(shell_word("") == "''");
  CHECK(shell_word("$HOME") == "'$HOME'");
}

}  // namespace
}  // namespace shell_word_test
