#include "launcher/port_claim.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>

namespace launcher {
namespace {

struct AbstractName {
  sockaddr_un value{};
  socklen_t size = 0;

  explicit AbstractName(const std::string& text) {
    value.sun_family = AF_UNIX;
    const std::size_t length = std::min(text.size(), sizeof(value.sun_path) - 1);
    std::memcpy(value.sun_path + 1, text.data(), length);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  }
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&value); }
};

/// Names the process at the other end; nothing if it is another user's, who may hold any name.
std::string holder_at(const dtrain::base::Descriptor& connection) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return {};
  if (peer.uid != ::geteuid()) return {};
  // A container that shares the network may have processes that have no number here.
  return peer.pid == 0 ? "another dtrun" : fmt::format("another dtrun (pid {})", peer.pid);
}

/// One attempt to take the name, or to learn who has it.
///
/// Returns: nothing while its holder is between taking the name and listening, or is ending.
std::optional<PortClaim> try_claim(const AbstractName& name) {
  PortClaim claim{
      dtrain::base::Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)),
      {}};
  if (::bind(claim.socket.get(), name.get(), name.size) == 0) {
    ::listen(claim.socket.get(), SOMAXCONN);  // so that another dtrun can ask whose it is
    return claim;
  }
  if (errno != EADDRINUSE) return PortClaim{};
  if (::connect(claim.socket.get(), name.get(), name.size) == 0) {
    return PortClaim{{}, holder_at(claim.socket)};
  }
  // Nobody takes in those who ask, so their queue may be full.
  if (errno == EAGAIN) return PortClaim{{}, "another dtrun"};
  if (errno == ECONNREFUSED) return std::nullopt;
  return PortClaim{};
}

}  // namespace

PortClaim claim_port(const Address& address) {
  // An abstract name goes with its process, and is known where the port is: in one network.
  const AbstractName name(fmt::format("dtrun-port-{}:{}", address.text(), address.port()));
  constexpr int kTries = 100;
  constexpr useconds_t kPause_us = 1000;
  for (int tries = 0; tries < kTries; ++tries) {
    if (auto claim = try_claim(name)) return *std::move(claim);
    ::usleep(kPause_us);
  }
  return {};
}

}  // namespace launcher
