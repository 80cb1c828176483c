// Sockets through which ranks find each other.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "dtrain/base/deadline.h"
#include "dtrain/base/descriptor.h"

namespace dtrain::net {

/// Tries once to connect to host:port; none with `reason` otherwise.
[[nodiscard]] base::Descriptor connect_to(const std::string& host, std::int64_t port,
                                          const base::Deadline& deadline, std::string& reason);

/// The numeric address of this end of a connection.
[[nodiscard]] std::string own_address_of(const base::Descriptor& socket);

/// A socket listening at that address alone, never at all interfaces of this machine.
///
/// Throws: Error{comm} naming address and reason.
[[nodiscard]] int listen_at(const std::string& host, std::int64_t port);

/// Two unix stream sockets, each the other's end.
///
/// Throws: Error{comm} with the reason.
[[nodiscard]] std::pair<base::Descriptor, base::Descriptor> connected_pair();

}  // namespace dtrain::net
