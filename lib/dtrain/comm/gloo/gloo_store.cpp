#include "dtrain/comm/gloo/gloo_store.h"

#include <fmt/format.h>

#include "dtrain/base/error.h"
#include "dtrain/base/number.h"

namespace dtrain::comm {

namespace {

[[noreturn]] void fail_as_unused(const char* call) {
  throw base::Error(base::ErrorKind::internal,
                    fmt::format("gloo calls the store's {}, which it did not need so far", call));
}

/// The member to whom a key of gloo's belongs.
std::size_t member_of(const std::string& key, std::size_t num_members) {
  const auto member = base::number_in<std::size_t>(key.substr(key.rfind('/') + 1));
  if (!member || *member >= num_members) fail_as_unused(fmt::format("key '{}'", key).c_str());
  return *member;
}

}  // namespace

void GlooStore::set(const std::string& key, const std::vector<std::uint8_t>& value) {
  own_.assign(value.begin(), value.end());
  if (members_.empty()) return;
  const GlooRecord& expected = members_[member_of(key, members_.size())];
  if (parse_record(own_, members_.size()) == expected) return;
  base::fail(base::ErrorKind::internal,
             "LibTorch's gloo numbers connections in an order that dtrain does not know; use the "
             "version of LibTorch that README names");
}

std::vector<std::uint8_t> GlooStore::get(const std::string& key) {
  if (members_.empty()) return {own_.begin(), own_.end()};
  const std::string bytes =
      record_bytes(members_[member_of(key, members_.size())], members_.size());
  return {bytes.begin(), bytes.end()};
}

c10::intrusive_ptr<c10d::Store> GlooStore::clone() { fail_as_unused("clone"); }

std::int64_t GlooStore::add(const std::string&, std::int64_t) { fail_as_unused("add"); }

bool GlooStore::deleteKey(const std::string&) { fail_as_unused("deleteKey"); }

bool GlooStore::check(const std::vector<std::string>&) { fail_as_unused("check"); }

std::int64_t GlooStore::getNumKeys() { fail_as_unused("getNumKeys"); }

}  // namespace dtrain::comm
