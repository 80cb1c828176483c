#include "launcher/list_text.h"

#include <catch2/catch.hpp>

namespace {

TEST_CASE("Of long lists the first 20 parts are named, and the others counted") {
  CHECK(launcher::list_text({}).empty());
  CHECK(launcher::list_text({"a", "b"}, "; ") == "a; b");
  std::vector<std::string> parts(20, "a");
  const std::string twenty = launcher::list_text(parts);
  CHECK(twenty.find("more") == std::string::npos);
  parts.resize(25, "b");
  CHECK(launcher::list_text(parts) == twenty + ", and 5 more");
}

}  // namespace
