#include <catch2/catch.hpp>

#include "dtrain/base/process.h"
#include "dtrain/base/text.h"
#include "support/messages.h"

namespace dtrain::base::printable_test {
namespace {

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

}  // namespace
}  // namespace dtrain::base::printable_test
