// An address and port of TCP, of either family.
#pragma once

#include <sys/socket.h>

#include <string>

#include "dtrain/base/descriptor.h"

namespace launcher {

class Address {
 public:
  Address() = default;
  Address(const sockaddr* address, socklen_t size);
  /// All addresses of this machine.
  [[nodiscard]] static Address any_of(int family, int port);
  /// The own address of a socket.
  [[nodiscard]] static Address of_socket(const dtrain::base::Descriptor& socket);

  [[nodiscard]] int family() const { return value_.ss_family; }
  [[nodiscard]] int port() const;
  void set_port(int port);
  /// Numeric, without the port.
  [[nodiscard]] std::string text() const;
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&value_); }
  [[nodiscard]] socklen_t size() const { return size_; }

 private:
  sockaddr_storage value_{};
  socklen_t size_ = 0;
};

/// The first address that a name, or a numeric address, stands for; IPv4 ones come first.
///
/// Throws: Error{usage} naming --master-addr.
[[nodiscard]] Address resolve_address(const std::string& host, int port);

}  // namespace launcher
