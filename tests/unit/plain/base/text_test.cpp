#include "dtrain/base/text/text.h"

#include <catch2/catch.hpp>
#include <limits>
#include <numeric>
#include <vector>

#include "dtrain/base/host/process.h"
#include "support/messages.h"

namespace dtrain::base::text_test {
namespace {

using dtrain::base::list_text;
using dtrain::base::ranks_text;
using dtrain::base::readable_time;
using dtrain::base::shell_word;
using dtrain::testing::Names;

TEST_CASE("Control characters do not reach a terminal, other text does") {
  CHECK(printable("plain, \xC3\xA4\xE2\x82\xAC text") == "plain, \xC3\xA4\xE2\x82\xAC text");
  CHECK(printable("a\x1b[31mb\n\r\tc\x7f") == "a?[31mb???c?");
  CHECK(printable("\xC2\x9B"
                  "31m") == "?31m");  // U+009B, which begins a sequence as ESC [ does
  CHECK(printable("\x9B"
                  "31m") == "?31m");  // the same, for a terminal of 8 bits
  CHECK(printable(std::string("a\0b", 3)) == "a?b");
  CHECK(printable("abcdef", 3) == "abc");
}

TEST_CASE("An error about open files names the limit, others stay as they are") {
  CHECK(with_open_file_limit("cannot read x: Permission denied") ==
        "cannot read x: Permission denied");
  CHECK_THAT(with_open_file_limit("cannot read x: Too many open files"),
             Catch::StartsWith("cannot read x: Too many open files; ") && Names("ulimit -n"));
  CHECK_THAT(with_open_file_limit("x: Too many open files in system"), !Catch::Contains("ulimit"));
}

TEST_CASE("Times are formatted in readable units") {
  CHECK(readable_time(0.00002) == "1 ms");
  CHECK(readable_time(0.0351) == "36 ms");
  CHECK(readable_time(0.0999) == "0.1 s");
  CHECK(readable_time(0.82) == "0.8 s");
  CHECK(readable_time(9.96) == "10 s");
  CHECK(readable_time(59.6) == "1 min");
  CHECK(readable_time(200) == "3 min 20 s");
  CHECK(readable_time(600) == "10 min");
  CHECK(readable_time(7500) == "2 h 5 min");
  CHECK(readable_time(3600 * 100) == "4 d 4 h");
}

TEST_CASE("No time is negative or nonsense") {
  CHECK(readable_time(-0.001) == "0 s");
  CHECK(readable_time(-1e9) == "0 s");
  CHECK(readable_time(std::numeric_limits<double>::quiet_NaN()) == "0 s");
  CHECK_FALSE(readable_time(std::numeric_limits<double>::infinity()).empty());
}

TEST_CASE("Long lists name the first 20 items and count the others") {
  CHECK(list_text({}).empty());
  CHECK(list_text({"a", "b"}, "; ") == "a; b");
  std::vector<std::string> parts(20, "a");
  const std::string twenty = list_text(parts);
  CHECK(twenty.find("more") == std::string::npos);
  parts.resize(25, "b");
  CHECK(list_text(parts) == twenty + ", and 5 more");
}

TEST_CASE("Ranks are listed by number, at most 20") {
  CHECK(ranks_text(std::vector{3}) == "rank 3");
  CHECK(ranks_text(std::vector{0, 2}) == "ranks 0, 2");
  std::vector<int> all(4096);
  std::iota(all.begin(), all.end(), 0);
  CHECK(
      ranks_text(all) ==
      "ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, and 4076 more");
}

TEST_CASE("A shell reads each word back as it was") {
  CHECK(shell_word("runs/a-1.txt") == "runs/a-1.txt");
  CHECK(shell_word("Once upon") == "'Once upon'");
  CHECK(shell_word("it's") == "'it'\\''s'");
  CHECK(shell_word("") == "''");
  CHECK(shell_word("$HOME") == "'$HOME'");
}

}  // namespace
}  // namespace dtrain::base::text_test
