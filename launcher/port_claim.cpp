#include "launcher/port_claim.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>

#include "dtrain/base/error.h"

namespace launcher {
namespace {

/// The process that listens at the other end; none if it is another user's, who may hold any name.
std::optional<pid_t> holder_of(const Descriptor& connection) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return {};
  return peer.uid == ::geteuid() ? std::optional(peer.pid) : std::nullopt;
}

}  // namespace

Descriptor claim_port(const std::string& address, int port) {
  if (port == 0) return {};
  // An abstract name goes with its process, and is known where the port is: in one network.
  const std::string text = fmt::format("dtrun-port-{}:{}", address, port);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const std::size_t length = std::min(text.size(), sizeof(name.sun_path) - 1);
  std::memcpy(name.sun_path + 1, text.data(), length);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&name), size) == 0) {
    ::listen(socket.get(), 1);  // so that another dtrun can ask whose it is
    return socket;
  }
  if (errno != EADDRINUSE) return {};
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&name), size) != 0) return {};
  const auto holder = holder_of(socket);
  if (!holder) return {};
  dtrain::base::fail(dtrain::base::ErrorKind::port,
                     "--master-port: port {} of {} is used by another dtrun (pid {}); give another "
                     "one, or 0 for a free one",
                     port, address, *holder);
}

}  // namespace launcher
