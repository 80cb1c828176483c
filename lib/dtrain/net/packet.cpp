#include "dtrain/net/packet.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"

namespace dtrain::net {

namespace {

[[noreturn]] void fail_for_files(int error) {
  base::fail(base::ErrorKind::comm, "cannot take in another rank: {}", std::strerror(error));
}

/// A packet's one number and the room for its descriptors, as the system wants them.
struct Message {
  std::int64_t rank = -1;
  iovec part{&rank, sizeof rank};
  std::vector<std::max_align_t> control;
  msghdr header{};

  explicit Message(std::size_t descriptors)
      : control(CMSG_SPACE(descriptors * sizeof(int)) / sizeof(std::max_align_t) + 1) {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(descriptors * sizeof(int));
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
};

/// All descriptors of a message: its room may hold more than the one that was asked for.
std::vector<base::Descriptor> descriptors_of(msghdr& header) {
  std::vector<base::Descriptor> found;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = CMSG_LEN(0); at + sizeof(int) <= part->cmsg_len; at += sizeof(int)) {
      int descriptor = -1;
      std::memcpy(&descriptor, reinterpret_cast<const char*>(part) + at, sizeof descriptor);
      found.emplace_back(descriptor);
    }
  }
  return found;
}

}  // namespace

int send_packet(const base::Descriptor& socket, std::int64_t rank, std::span<const int> descriptors,
                const base::Deadline& deadline) {
  Message message(descriptors.size());
  message.rank = rank;
  cmsghdr* rights = CMSG_FIRSTHDR(&message.header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
  std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
  while (::sendmsg(socket.get(), &message.header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    // ETOOMANYREFS: too many descriptors are on their way already.
    const bool may_try_again = errno == EAGAIN || errno == EINTR || errno == ETOOMANYREFS;
    if (!may_try_again || deadline.passed()) return errno;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return 0;
}

Packet receive_packet(const base::Descriptor& socket, std::size_t most) {
  Message message(most);
  const ssize_t count = ::recvmsg(socket.get(), &message.header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (count <= 0) {
    const bool may_come = count < 0 && (errno == EAGAIN || errno == EINTR);
    return {.is_closed = !may_come};
  }
  std::vector<base::Descriptor> descriptors = descriptors_of(message.header);
  // A descriptor for which this process has no room is left out, with those that follow it. Of a
  // packet for one, a stranger may have sent too many.
  const bool lacks_some = (message.header.msg_flags & MSG_CTRUNC) != 0;
  if (lacks_some && (descriptors.empty() || most > 1)) fail_for_files(EMFILE);
  if (count != static_cast<ssize_t>(sizeof message.rank) || descriptors.size() > most) return {};
  return {.rank = message.rank, .descriptors = std::move(descriptors)};
}

base::Descriptor accept_connection(const base::Descriptor& listener,
                                   const std::function<bool()>& make_room) {
  while (true) {
    base::Descriptor taken(
        ::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    const int error = errno;
    if (taken.get() >= 0 || (error != EMFILE && error != ENFILE)) return taken;
    if (!make_room()) fail_for_files(error);
  }
}

}  // namespace dtrain::net
