#include "dtrain/net/addresses.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>

#include "dtrain/base/error.h"
#include "dtrain/net/socket.h"
#include "support/messages.h"

namespace dtrain::net::addresses_test {
namespace {

using base::Deadline;
using dtrain::base::SlurmStep;
using dtrain::net::address_of_first_node;
using dtrain::net::node_address_in;
using dtrain::testing::Names;
using std::chrono::milliseconds;

// Addresses at which processes listen and are reached, and the time limits of connecting.
TEST_CASE("Loopback addresses are distinguished from others and from invalid text") {
  for (const char* address : {"127.0.0.1", "127.0.1.1", "::1"}) CHECK(is_loopback(address));
  for (const char* address : {"128.0.0.1", "10.127.0.1", "fe80::1", "localhost", "", "garbage"}) {
    CHECK_FALSE(is_loopback(address));
  }
  for (const std::string& address : interface_addresses()) CHECK_FALSE(is_loopback(address));
}

TEST_CASE("Addresses convert to network-order bytes, and invalid ones to none") {
  CHECK(address_bytes("10.77.0.1") == std::string("\x0a\x4d\0\x01", 4));
  CHECK(address_bytes("::1") == std::string(15, '\0') + '\x01');
  for (const char* address : {"10.77.0.1", "255.255.255.255", "::1", "fd77::1", "fe80::1"}) {
    CHECK(address_of_bytes(address_bytes(address)) == address);
  }
  for (const char* none : {"", "localhost", "10.77.0", "fe80::1%lo"}) {
    CHECK(address_bytes(none).empty());
    CHECK(address_of_bytes(none).empty());
  }
}

TEST_CASE("A process finds an address at which others can reach it") {
  CHECK(source_address_to("127.0.0.1") == "127.0.0.1");
  CHECK(source_address_to("garbage").empty());
  using Addresses = std::vector<std::string>;
  CHECK(reachable_address("10.1.1.1", Addresses{"10.1.1.2"}) == "10.1.1.1");
  CHECK(reachable_address("127.0.1.1", Addresses{"127.0.1.1", "127.0.0.1", ""}) == "127.0.1.1");
  CHECK(reachable_address("127.0.1.1", Addresses{"garbage"}) == "127.0.1.1");
  CHECK(reachable_address("", Addresses{}).empty());
  for (const char* none : {"127.0.1.1", "::1", "garbage", ""}) CHECK_FALSE(is_remote(none));
  const auto own = interface_addresses();
  if (own.empty()) return;  // of a machine without a network
  CHECK_FALSE(is_remote(own[0]));
  CHECK(reachable_address("127.0.1.1", Addresses{"127.0.0.1", own[0]}) == own[0]);
  CHECK(reachable_address("", Addresses{"", own[0]}) == own[0]);
}

TEST_CASE("An interface is found by name, and an unknown one is reported with the known ones") {
  const auto all = interfaces();
  REQUIRE(std::ranges::count(all, "lo", &Interface::name) == 1);
  CHECK(find_interface("lo", "--interface").address == "127.0.0.1");
  CHECK(find_interface("eth99,,lo", "--interface").name == "lo");
  for (const char* names : {"eth99", "l", "lo0", ","}) {
    try {
      (void)find_interface(names, "--interface");
      FAIL("expected an error");
    } catch (const base::Error& error) {
      CHECK(error.kind() == base::ErrorKind::usage);
      const std::string text = error.what();
      CHECK(text.starts_with(std::string("--interface: found ") + names));
      for (const Interface& each : all) CHECK(text.find(each.name) != std::string::npos);
    }
  }
}

TEST_CASE("Failing to list interfaces is not a usage error") {
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = limit.rlim_max};
  auto kind = base::ErrorKind::usage;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  try {
    (void)find_interface("lo", "--interface");
  } catch (const base::Error& error) {
    kind = error.kind();
  }
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
  CHECK(kind == base::ErrorKind::comm);
}

TEST_CASE(
    "Rank 0 listens at a given numeric address alone, or at all addresses to which other hosts may "
    "resolve a loopback name") {
  const auto one = listen_for_hosts("127.0.0.1", 0);
  REQUIRE(one.size() == 1);
  CHECK(own_address_of(one[0]) == "127.0.0.1");

  const auto many = listen_for_hosts("localhost", 0);
  std::vector<std::string> addresses;
  for (const auto& socket : many) {
    addresses.push_back(own_address_of(socket));
    CHECK(port_of(socket) == port_of(many[0]));
  }
  for (const std::string& each : interface_addresses()) {
    CHECK(std::ranges::count(addresses, each) == 1);
  }
  CHECK(std::ranges::count(addresses, "0.0.0.0") == 0);
  CHECK(std::ranges::any_of(addresses, &is_loopback));

  try {
    (void)listen_for_hosts("localhost", port_of(one[0]));
    FAIL("expected a port that is taken");
  } catch (const base::Error& error) {
    CHECK(error.kind() == base::ErrorKind::port);
    CHECK(std::string(error.what()).find("127.0.0.1: Address already in use") != std::string::npos);
  }
}

// A full backlog answers no further connection.
TEST_CASE("A connection attempt without an answer ends before its deadline") {
  const auto listening = listen_for_hosts("127.0.0.1", 0);
  REQUIRE(::listen(listening[0].get(), 0) == 0);
  std::vector<base::Descriptor> waiting;
  std::string reason;
  for (int guest = 0; guest < 3; ++guest) {
    waiting.push_back(
        connect_to("127.0.0.1", port_of(listening[0]), Deadline(milliseconds(300)), reason));
  }
  CHECK(waiting.back().get() < 0);
  CHECK(reason == "Connection timed out");
  const auto start = std::chrono::steady_clock::now();
  CHECK(connect_to("127.0.0.1", port_of(listening[0]), Deadline(std::chrono::hours(1)), reason)
            .get() < 0);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
}

TEST_CASE("A node's address is parsed from scontrol's output") {
  CHECK(node_address_in("NodeName=n1 Arch=x86_64 Gres=(null) NodeAddr=10.0.0.7 NodeHostName=n1 "
                        "Version=22.05.8\n") == "10.0.0.7");
  CHECK(node_address_in("NodeName=n1 NodeAddr=n1.cluster\n") == "n1.cluster");
  CHECK(node_address_in("Node n1 not found\n").empty());
  CHECK(node_address_in("").empty());
}

TEST_CASE("MASTER_ADDR takes precedence over a step's hosts") {
  CHECK(address_of_first_node({.num_nodes = 2, .hosts = "a[", .master_addr = "10.0.0.1"}) ==
        "10.0.0.1");
}

TEST_CASE("A known first node is addressed by its name, but never by another node's loopback") {
  CHECK(address_of_first_node({.num_nodes = 2, .node = 1, .hosts = "192.0.2.[1-2]"}) ==
        "192.0.2.1");
  // Debian gives a machine's own name a loopback address.
  CHECK(address_of_first_node({.num_nodes = 2, .node = 0, .hosts = "127.0.1.[1-2]"}) ==
        "127.0.1.1");
  CHECK_THROWS_WITH(address_of_first_node({.num_nodes = 2, .node = 1, .hosts = "127.0.1.[1-2]"}),
                    Names("127.0.1.1", "loopback", "MASTER_ADDR"));
}

TEST_CASE("A name that is unsafe for a shell is not looked up") {
  CHECK_THROWS_WITH(
      address_of_first_node({.num_nodes = 2, .node = 1, .hosts = "$(touch x).invalid"}),
      Catch::Contains("no NodeAddr"));
}

}  // namespace
}  // namespace dtrain::net::addresses_test
