#include "dtrain/comm/internal/gloo/gloo_record.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <bit>
#include <cstring>

#include "dtrain/base/error.h"
#include "dtrain/net/message.h"

namespace dtrain::comm {

namespace {

using base::ErrorKind;

// gloo copies its numbers in native byte order.
static_assert(std::endian::native == std::endian::little);

// An endpoint's port and address.
constexpr std::size_t kIpv4Bytes = sizeof(in_port_t) + sizeof(in_addr);
constexpr std::size_t kIpv6Bytes = sizeof(in_port_t) + sizeof(in6_addr);

constexpr std::uint64_t kUnnumbered = ~std::uint64_t{0};  // of the address of a whole process

template <typename Value>
std::string_view raw_bytes(const Value& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

[[noreturn]] void fail_for_unknown_format() {
  base::fail(ErrorKind::internal,
             "LibTorch's gloo describes a rank in an unknown format; use the version of LibTorch "
             "that README names");
}

/// Extracts port and address; gloo leaves the rest of the structure uninitialised.
std::string endpoint_of(std::string_view socket_address) {
  sockaddr_storage storage{};
  std::memcpy(&storage, socket_address.data(), sizeof storage);
  if (storage.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(storage);
    return std::string(raw_bytes(v4.sin_port)).append(raw_bytes(v4.sin_addr));
  }
  if (storage.ss_family != AF_INET6) fail_for_unknown_format();
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage);
  return std::string(raw_bytes(v6.sin6_port)).append(raw_bytes(v6.sin6_addr));
}

std::string socket_address_of(const std::string& endpoint) {
  sockaddr_storage storage{};
  auto& v4 = reinterpret_cast<sockaddr_in&>(storage);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(storage);
  const char* const address = endpoint.data() + sizeof(in_port_t);
  if (endpoint.size() == kIpv4Bytes) {
    v4.sin_family = AF_INET;
    std::memcpy(&v4.sin_port, endpoint.data(), sizeof v4.sin_port);
    std::memcpy(&v4.sin_addr, address, sizeof v4.sin_addr);
  } else if (endpoint.size() == kIpv6Bytes) {
    v6.sin6_family = AF_INET6;
    std::memcpy(&v6.sin6_port, endpoint.data(), sizeof v6.sin6_port);
    std::memcpy(&v6.sin6_addr, address, sizeof v6.sin6_addr);
  } else {
    fail_for_unknown_format();
  }
  return std::string(raw_bytes(storage));
}

}  // namespace

bool is_endpoint(std::string_view bytes) {
  return bytes.size() == kIpv4Bytes || bytes.size() == kIpv6Bytes;
}

GlooRecord parse_record(std::string_view bytes, std::size_t num_members) {
  net::MessageReader reader(bytes);
  (void)reader.text();  // the host's name
  const std::string address = reader.text();
  if (address.size() != sizeof(sockaddr_storage) + sizeof kUnnumbered) fail_for_unknown_format();
  if (reader.is_whole()) {
    base::fail(ErrorKind::usage,
               "gloo does not number its connections, but several groups require it; unset "
               "GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER");
  }
  const std::uint64_t first = reader.number();
  for (std::size_t member = 1; member < num_members; ++member) {
    if (reader.number() != first + member) fail_for_unknown_format();
  }
  if (!reader.is_whole()) fail_for_unknown_format();
  return {.endpoint = endpoint_of(address), .first_number = static_cast<std::int64_t>(first)};
}

std::string record_bytes(const GlooRecord& record, std::size_t num_members) {
  net::MessageWriter writer;
  writer.text("").text(socket_address_of(record.endpoint).append(raw_bytes(kUnnumbered)));
  const auto first = static_cast<std::uint64_t>(record.first_number);
  for (std::size_t member = 0; member < num_members; ++member) writer.number(first + member);
  return writer.bytes();
}

}  // namespace dtrain::comm
