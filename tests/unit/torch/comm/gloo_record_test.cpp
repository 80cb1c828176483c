// Parsing and rebuilding of gloo's connection records.
#include "dtrain/comm/internal/gloo/gloo_record.h"

#include <catch2/catch.hpp>
#include <string>

#include "dtrain/base/error.h"
#include "dtrain/net/message.h"

namespace dtrain::comm::gloo_record_test {
namespace {

using namespace std::string_literals;
using base::ErrorKind;

/// As LibTorch 2.11's gloo writes it on host "vm", for a group whose connections are numbered so.
std::string written(const std::string& socket_address, const std::vector<std::uint64_t>& numbers) {
  std::string address = socket_address;
  address.resize(128, '?');  // whatever was in the memory
  net::MessageWriter writer;
  writer.text("vm").text(address + "\xff\xff\xff\xff\xff\xff\xff\xff");
  for (const std::uint64_t number : numbers) writer.number(number);
  return writer.bytes();
}

const std::string kIpv4 = "\x02\0\x97\xbb\x7f\0\0\x01"s;
const std::string kIpv6 = "\x0a\0\x97\xbb\0\0\0\0\xfd\x77\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0"s;

ErrorKind kind_of_error(const std::string& bytes, std::size_t num_members) {
  try {
    (void)parse_record(bytes, num_members);
  } catch (const base::Error& error) {
    return error.kind();
  }
  FAIL("expected an error");
  return {};
}

TEST_CASE("A record consists of its endpoint and its first number") {
  const GlooRecord v4 = parse_record(written(kIpv4, {7, 8, 9}), 3);
  CHECK(v4.endpoint == "\x97\xbb\x7f\0\0\x01"s);
  CHECK(v4.first_number == 7);
  const GlooRecord v6 = parse_record(written(kIpv6, {0}), 1);
  CHECK(v6.endpoint == "\x97\xbb"s + kIpv6.substr(8, 16));
  CHECK(v6.first_number == 0);
}

TEST_CASE("A rebuilt record has the parts that gloo reads") {
  for (const std::string& address : {kIpv4, kIpv6}) {
    const std::string before = written(address, {7, 8, 9});
    const GlooRecord record = parse_record(before, 3);
    const std::string after = record_bytes(record, 3);
    CHECK(parse_record(after, 3) == record);
    CHECK(after.size() == before.size() - 2);  // the host's name
    CHECK(after.substr(16, address.size()) == address);
    CHECK(after.substr(16 + 128) == before.substr(18 + 128));
  }
}

TEST_CASE("Unknown formats are rejected, and records whose numbers a variable omits") {
  CHECK(kind_of_error(written(kIpv4, {}), 3) == ErrorKind::usage);
  CHECK(kind_of_error(written(kIpv4, {7, 9, 10}), 3) == ErrorKind::internal);
  CHECK(kind_of_error(written(kIpv4, {7, 8, 9}), 2) == ErrorKind::internal);
  CHECK(kind_of_error(written("\x01\0"s, {7}), 1) == ErrorKind::internal);
  CHECK(kind_of_error("", 1) == ErrorKind::internal);
  for (const std::size_t bytes : {0, 4, 7, 16, 19})
    CHECK_FALSE(is_endpoint(std::string(bytes, 'a')));
  for (const std::size_t bytes : {6, 18}) CHECK(is_endpoint(std::string(bytes, 'a')));
}

}  // namespace
}  // namespace dtrain::comm::gloo_record_test
