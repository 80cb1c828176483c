#include "dtrain/comm/gloo/gloo_store.h"

#include "dtrain/base/check.h"
#include "dtrain/base/error.h"
#include "dtrain/base/readable.h"

namespace dtrain::comm {

namespace {

[[noreturn]] void fail_as_unused(const char* call) {
  throw base::Error(base::ErrorKind::internal,
                    fmt::format("gloo calls the store's {}, which it did not need so far", call));
}

}  // namespace

c10::intrusive_ptr<c10d::Store> GlooStore::clone() {
  return c10::make_intrusive<GlooStore>(client_, prefix_, timeout_);
}

void GlooStore::set(const std::string& key, const std::vector<std::uint8_t>& value) {
  client_.set(prefix_ + key, {reinterpret_cast<const char*>(value.data()), value.size()});
}

std::vector<std::uint8_t> GlooStore::get(const std::string& key) {
  const std::string value = find(key, timeout_);
  return {value.begin(), value.end()};
}

void GlooStore::wait(const std::vector<std::string>& keys,
                     const std::chrono::milliseconds& timeout) {
  const base::Deadline deadline(timeout);
  for (const std::string& key : keys) (void)find(key, deadline.remaining());
}

std::string GlooStore::find(const std::string& key, std::chrono::milliseconds timeout) {
  if (auto value = client_.get(prefix_ + key, base::Deadline(timeout))) return *std::move(value);
  base::fail(base::ErrorKind::timeout, "gloo's '{}' did not come to the store within {}", key,
             base::readable_time(base::Seconds(timeout).count()));
}

std::int64_t GlooStore::add(const std::string&, std::int64_t) { fail_as_unused("add"); }

bool GlooStore::deleteKey(const std::string&) { fail_as_unused("deleteKey"); }

bool GlooStore::check(const std::vector<std::string>&) { fail_as_unused("check"); }

std::int64_t GlooStore::getNumKeys() { fail_as_unused("getNumKeys"); }

}  // namespace dtrain::comm
