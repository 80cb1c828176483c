#include <catch2/catch.hpp>

#include "dtrain/base/error.h"
#include "dtrain/net/addresses.h"
#include "support/messages.h"

namespace slurm_address_test {
namespace {

using dtrain::base::SlurmStep;
using dtrain::net::address_of_first_node;
using dtrain::net::node_address_in;
using dtrain::testing::Names;

TEST_CASE("A node's address is found in what scontrol prints") {
  CHECK(node_address_in("NodeName=n1 Arch=x86_64 Gres=(null) NodeAddr=10.0.0.7 NodeHostName=n1 "
                        "Version=22.05.8\n") == "10.0.0.7");
  CHECK(node_address_in("NodeName=n1 NodeAddr=n1.cluster\n") == "n1.cluster");
  CHECK(node_address_in("Node n1 not found\n").empty());
  CHECK(node_address_in("").empty());
}

TEST_CASE("MASTER_ADDR says where a step meets, whatever its hosts are") {
  CHECK(address_of_first_node({.num_nodes = 2, .hosts = "a[", .master_addr = "10.0.0.1"}) ==
        "10.0.0.1");
}

TEST_CASE("A first node that is known is met by its name, but never at another node's loopback") {
  CHECK(address_of_first_node({.num_nodes = 2, .node = 1, .hosts = "192.0.2.[1-2]"}) ==
        "192.0.2.1");
  // Debian gives a machine's own name a loopback address.
  CHECK(address_of_first_node({.num_nodes = 2, .node = 0, .hosts = "127.0.1.[1-2]"}) ==
        "127.0.1.1");
  CHECK_THROWS_WITH(address_of_first_node({.num_nodes = 2, .node = 1, .hosts = "127.0.1.[1-2]"}),
                    Names("127.0.1.1", "loopback", "MASTER_ADDR"));
}

TEST_CASE("A name that no shell may see is not looked up") {
  CHECK_THROWS_WITH(
      address_of_first_node({.num_nodes = 2, .node = 1, .hosts = "$(touch x).invalid"}),
      Catch::Contains("no NodeAddr"));
}

}  // namespace
}  // namespace slurm_address_test
