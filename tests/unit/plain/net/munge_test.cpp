#include <catch2/catch.hpp>

#include "dtrain/net/proof.h"

namespace munge_test {
namespace {

using dtrain::net::open_from_own_user;
using dtrain::net::seal_for_own_user;

// tests/cli/slurm_test.py starts a munge of its own; here it is what the machine has.
TEST_CASE("A text is sealed and opened, or a reason says why not") {
  std::string reason;
  const auto sealed = seal_for_own_user("a secret", reason);
  if (!sealed) {
    CHECK_FALSE(reason.empty());
    return;
  }
  CHECK(sealed->starts_with("MUNGE:"));
  CHECK(open_from_own_user(*sealed, reason) == "a secret");
  CHECK_FALSE(open_from_own_user(*sealed, reason));  // once
  CHECK_FALSE(reason.empty());
}

TEST_CASE("What is no credential is not opened") {
  for (const char* text : {"", "MUNGE:", "MUNGE:AAAA:", "nonsense"}) {
    std::string reason;
    CHECK_FALSE(open_from_own_user(text, reason));
    CHECK_FALSE(reason.empty());
  }
}

}  // namespace
}  // namespace munge_test
