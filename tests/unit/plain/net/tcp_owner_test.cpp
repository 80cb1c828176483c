// Owners of the ends of TCP connections.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>
#include <utility>

#include "dtrain/base/io/descriptor.h"
#include "dtrain/net/proof.h"
#include "dtrain/net/socket.h"
#include "support/ranks/port_of.h"

namespace dtrain::comm::tcp_owner_test {
namespace {

struct Connection {
  base::Descriptor listener;
  base::Descriptor near;
  base::Descriptor far;

  explicit Connection(const std::string& host)
      : Connection(base::Descriptor(net::listen_at(host, 0)), host) {}

  Connection(base::Descriptor listening, const std::string& host) : listener(std::move(listening)) {
    std::string reason;
    near = net::connect_to(host, testing::port_of(listener.get()),
                           base::Deadline(std::chrono::seconds(5)), reason);
    far = base::Descriptor(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    REQUIRE(far.get() >= 0);
  }
};

net::TcpEnd end_of(const base::Descriptor& socket) {
  net::TcpEnd end;
  socklen_t length = sizeof end.local;
  REQUIRE(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&end.local), &length) == 0);
  length = sizeof end.remote;
  REQUIRE(::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&end.remote), &length) == 0);
  return end;
}

/// Listens for connections of both families.
base::Descriptor listener_of_both() {
  base::Descriptor listener(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int off = 0;
  REQUIRE(::setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0);
  REQUIRE(::listen(listener.get(), 1) == 0);
  return listener;
}

TEST_CASE("The owners of an IPv4 connection to an IPv6 socket are found") {
  const Connection connection(listener_of_both(), "127.0.0.1");
  for (const base::Descriptor* end : {&connection.near, &connection.far}) {
    net::TcpEnd other = end_of(*end);
    std::swap(other.local, other.remote);
    const auto read = net::owner_by_table(other);
    REQUIRE(read);
    CHECK(read->user == ::getuid());
    CHECK(net::user_of_tcp_peer(end->get()) == ::geteuid());
  }
}

TEST_CASE("Netlink and the /proc table report the same owner") {
  for (const std::string host : {"127.0.0.1", "::1"}) {
    CAPTURE(host);
    Connection connection(host);
    for (const base::Descriptor* end : {&connection.near, &connection.far}) {
      const auto asked = net::owner_by_netlink(end_of(*end));
      const auto read = net::owner_by_table(end_of(*end));
      REQUIRE(asked);
      REQUIRE(read);
      CHECK(asked->user == ::getuid());
      CHECK(asked->is_connected);
      CHECK(asked->inode != 0);
      CHECK(read->user == asked->user);
      CHECK(read->is_connected == asked->is_connected);
      CHECK(read->inode == asked->inode);
    }
    CHECK(net::user_of_tcp_peer(connection.near.get()) == ::geteuid());
    const net::TcpEnd far = end_of(connection.far);
    connection.far = base::Descriptor();
    CHECK_FALSE(net::user_of_tcp_peer(connection.near.get()));
    net::TcpEnd nobody = far;
    reinterpret_cast<sockaddr_in*>(&nobody.remote)->sin_port = htons(1);  // of IPv6, too
    CHECK_FALSE(net::owner_by_netlink(nobody));  // and not the socket that listens there
    CHECK_FALSE(net::owner_by_table(nobody));
  }
}

}  // namespace
}  // namespace dtrain::comm::tcp_owner_test
