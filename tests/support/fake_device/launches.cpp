#include "support/fake_device/launches.h"

#include <atomic>
#include <mutex>
#include <utility>

namespace dtrain::testing::fake {
namespace {

struct Kept {
  std::atomic<bool> is_on = false;
  std::mutex mutex;
  std::vector<Launch> launches;
};

Kept& kept() {
  static auto* const made = new Kept;  // never freed: streams may outlive main
  return *made;
}

}  // namespace

void keep_launches(bool keep) { kept().is_on = keep; }

std::vector<Launch> take_launches() {
  const std::lock_guard lock(kept().mutex);
  return std::exchange(kept().launches, {});
}

void note_launch(const Launch& launch) {
  if (!kept().is_on) return;
  const std::lock_guard lock(kept().mutex);
  kept().launches.push_back(launch);
}

}  // namespace dtrain::testing::fake
