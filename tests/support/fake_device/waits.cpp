#include "support/fake_device/waits.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "support/fake_device/streams.h"

namespace dtrain::testing::fake {
namespace {

// drops_wait, the guard and the event itself lie below; above, the loop of steps says no more.
constexpr int kSkipped = 2;
constexpr int kFrames = 11;

struct Watch {
  std::atomic<bool> is_on = false;
  std::mutex mutex;
  std::optional<std::uint64_t> dropped;
  std::vector<WaitSite> sites;
};

Watch& watch() {
  static auto* const made = new Watch;
  return *made;
}

// Without the parameters.
std::string name_of(void* address) {
  Dl_info found{};
  if (dladdr(address, &found) == 0 || found.dli_sname == nullptr) return {};
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(found.dli_sname, nullptr, nullptr, &status), &std::free);
  const std::string whole = status == 0 ? name.get() : found.dli_sname;
  return whole.substr(0, whole.find('('));
}

WaitSite site_of(std::span<void* const> frames) {
  WaitSite site{.id = 0xCBF29CE484222325, .text = {}};
  for (void* const frame : frames) {
    site.id = (site.id ^ reinterpret_cast<std::uint64_t>(frame)) * 0x100000001B3;
  }
  return site;
}

std::string text_of(std::span<void* const> frames) {
  std::string text;
  for (void* const frame : frames) {
    const std::string name = name_of(frame);
    if (!name.starts_with("dtrain::") || name.starts_with("dtrain::testing::fake")) continue;
    text += (text.empty() ? "" : " < ") + name;
  }
  return text;
}

}  // namespace

void watch_waits(std::optional<std::uint64_t> dropped) {
  const std::lock_guard lock(watch().mutex);
  watch().dropped = dropped;
  watch().sites.clear();
  watch().is_on = true;
}

std::vector<WaitSite> unwatch_waits() {
  const std::lock_guard lock(watch().mutex);
  watch().is_on = false;
  return std::exchange(watch().sites, {});
}

bool drops_wait(StreamNumber stream, const Clock& clock) {
  if (!watch().is_on || streams().launched(stream).includes(clock)) return false;
  std::array<void*, kFrames> all{};
  const int count = backtrace(all.data(), kFrames);
  const auto frames = std::span(all).first(static_cast<std::size_t>(count)).subspan(kSkipped);
  WaitSite site = site_of(frames);
  const std::lock_guard lock(watch().mutex);
  const auto known = std::ranges::find(watch().sites, site.id, &WaitSite::id);
  if (known == watch().sites.end()) {
    site.text = text_of(frames);
    watch().sites.push_back(site);
  }
  return watch().dropped == site.id;
}

}  // namespace dtrain::testing::fake
