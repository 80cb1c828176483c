#include <catch2/catch.hpp>

#include "dtrain/base/slurm_step.h"

namespace host_list_test {
namespace {

using dtrain::base::expand_host_list;
using Hosts = std::vector<std::string>;

TEST_CASE("Ranges, lists and names of a host list are expanded in their order") {
  CHECK(expand_host_list("n1") == Hosts{"n1"});
  CHECK(expand_host_list("a[01-03,7],b5") == Hosts{"a01", "a02", "a03", "a7", "b5"});
  CHECK(expand_host_list("b,a") == Hosts{"b", "a"});
  CHECK(expand_host_list("n[8-11]") == Hosts{"n8", "n9", "n10", "n11"});
  CHECK(expand_host_list("n[008-010]") == Hosts{"n008", "n009", "n010"});
  CHECK(expand_host_list("[1-2].example.org") == Hosts{"1.example.org", "2.example.org"});
}

TEST_CASE("Names go on after brackets, of which there may be several") {
  CHECK(expand_host_list("gpu[1,3]-ib") == Hosts{"gpu1-ib", "gpu3-ib"});
  CHECK(expand_host_list("r[1-2]n[1-2]x") == Hosts{"r1n1x", "r1n2x", "r2n1x", "r2n2x"});
}

TEST_CASE("A host list that makes no sense has no hosts") {
  for (const char* list : {"",
                           ",",
                           "a,",
                           ",a",
                           "a[",
                           "a]",
                           "a[]",
                           "a[1",
                           "a1]",
                           "a[1-]",
                           "a[-1]",
                           "a[3-1]",
                           "a[x]",
                           "a[1,]",
                           "a[1--2]",
                           "a[[1]]",
                           "a[1]]",
                           "a[1 ]",
                           "a[1234567890]",
                           "a[1-2,b]"}) {
    INFO(list);
    CHECK_FALSE(expand_host_list(list));
  }
}

TEST_CASE("A host list is limited") {
  CHECK(expand_host_list("n[1-65536]")->size() == 65'536);
  CHECK_FALSE(expand_host_list("n[1-65537]"));
  CHECK_FALSE(expand_host_list("n[0-999999999]"));
  CHECK_FALSE(expand_host_list("n[1-1000][1-1000]"));
  CHECK(expand_host_list(std::string(255, 'x')));
  CHECK_FALSE(expand_host_list(std::string(256, 'x')));
  std::string brackets;  // one host, but a deep recursion
  for (int i = 0; i < 100'000; ++i) brackets += "[1]";
  CHECK_FALSE(expand_host_list(brackets));
}

}  // namespace
}  // namespace host_list_test
