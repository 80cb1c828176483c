#include "support/fake_device/pinned.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

namespace dtrain::testing::fake {
namespace {

struct Guard {
  std::weak_ptr<Block> block;
  Range range;
  Epoch copy;
  int rights = PROT_NONE;
};

struct Guards {
  std::mutex mutex;
  std::vector<Guard> all;
};

Guards& guards() {
  static auto* const made = new Guards;
  return *made;
}

// A later guard of the same pages must not open what an earlier one has closed.
void apply(const std::vector<Guard>& all) {
  for (const int rights : {PROT_READ, PROT_NONE}) {
    for (const Guard& guard : all) {
      const BlockPtr block = guard.block.lock();
      if (block && guard.rights == rights) memory().protect(*block, guard.range, rights);
    }
  }
}

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device host(c10::kCPU);
    if (bytes == 0) return {nullptr, host};
    BlockPtr block = memory().allocate(bytes, Place::pinned, 0);
    void* const data = memory().for_host(*block);
    return {data, new BlockPtr(std::move(block)), &give_back, host};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

 private:
  static void give_back(void* context) {
    const std::unique_ptr<BlockPtr> held(static_cast<BlockPtr*>(context));
    const std::lock_guard lock(guards().mutex);
    std::erase_if(guards().all, [&](const Guard& g) { return g.block.lock() == *held; });
    memory().forget(**held);
  }
};

}  // namespace

c10::Allocator& pinned_allocator() {
  static auto* const made = new PinnedAllocator;
  return *made;
}

void guard_copy(const Access& access, const Epoch& copy) {
  const std::lock_guard lock(guards().mutex);
  const int rights = access.is_write ? PROT_NONE : PROT_READ;
  for (const Range& range : access.ranges) {
    guards().all.push_back({.block = access.block, .range = range, .copy = copy, .rights = rights});
  }
  apply(guards().all);
}

void release_copies(const Clock& known) {
  const std::lock_guard lock(guards().mutex);
  std::vector<Guard>& all = guards().all;
  const auto is_over = [&](const Guard& guard) { return guard.copy.is_before(known); };
  for (const Guard& guard : all) {
    const BlockPtr block = guard.block.lock();
    if (block && is_over(guard)) memory().protect(*block, guard.range, PROT_READ | PROT_WRITE);
  }
  std::erase_if(all, is_over);
  apply(all);
}

}  // namespace dtrain::testing::fake
