#include "dtrain/comm/gloo/listener.h"

#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>

namespace dtrain::comm {

namespace {

template <typename Value>
bool get_option(int descriptor, int option, Value& value) {
  socklen_t length = sizeof value;
  return ::getsockopt(descriptor, SOL_SOCKET, option, &value, &length) == 0;
}

/// This process's listening TCP sockets: their cookies, which never come again, and descriptors.
std::map<std::uint64_t, int> tcp_listeners() {
  std::map<std::uint64_t, int> found;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", none)) {
    const int descriptor = std::stoi(entry.path().filename());
    int listens = 0;
    int protocol = 0;
    std::uint64_t cookie = 0;
    if (get_option(descriptor, SO_ACCEPTCONN, listens) && listens == 1 &&
        get_option(descriptor, SO_PROTOCOL, protocol) && protocol == IPPROTO_TCP &&
        get_option(descriptor, SO_COOKIE, cookie)) {
      found[cookie] = descriptor;
    }
  }
  return found;
}

}  // namespace

int listener_opened_by(const std::function<void()>& open) {
  const auto before = tcp_listeners();
  open();
  for (const auto& [cookie, descriptor] : tcp_listeners()) {
    if (!before.contains(cookie)) return descriptor;
  }
  return -1;
}

void refuse_connections(int listener) noexcept {
  sock_filter nothing{.code = BPF_RET | BPF_K, .jt = 0, .jf = 0, .k = 0};
  const sock_fprog filter{.len = 1, .filter = &nothing};
  ::setsockopt(listener, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter);
}

}  // namespace dtrain::comm
