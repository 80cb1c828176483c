#include <catch2/catch.hpp>
#include <numeric>
#include <vector>

#include "dtrain/base/text.h"

namespace list_text_test {
namespace {

using dtrain::base::list_text;
using dtrain::base::ranks_text;

TEST_CASE("Of long lists the first 20 parts are named, and the others counted") {
  CHECK(list_text({}).empty());
  CHECK(list_text({"a", "b"}, "; ") == "a; b");
  std::vector<std::string> parts(20, "a");
  const std::string twenty = list_text(parts);
  CHECK(twenty.find("more") == std::string::npos);
  parts.resize(25, "b");
  CHECK(list_text(parts) == twenty + ", and 5 more");
}

TEST_CASE("Ranks are listed by their numbers, of many the first 20") {
  CHECK(ranks_text(std::vector{3}) == "rank 3");
  CHECK(ranks_text(std::vector{0, 2}) == "ranks 0, 2");
  std::vector<int> all(4096);
  std::iota(all.begin(), all.end(), 0);
  CHECK(
      ranks_text(all) ==
      "ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, and 4076 more");
}

}  // namespace
}  // namespace list_text_test
