#include "support/fake_device/graph.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "support/fake_device/counters.h"
#include "support/fake_device/faults.h"
#include "support/fake_device/operators/launched_kernel.h"
#include "support/fake_device/streams.h"

namespace dtrain::testing::fake {
namespace {

thread_local Graph* recorded = nullptr;

class Recording {
 public:
  explicit Recording(Graph& graph) {
    refuse_in_capture("a capture");
    recorded = &graph;
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  ~Recording() { recorded = nullptr; }
};

// A real graph would use the freed address; here it is an error.
void check_is_there(const Graph::Launch& launch) {
  for (const Access& access : launch.accesses) {
    if (!access.block) continue;
    TORCH_CHECK(memory().find(memory().for_host(*access.block)) == access.block,
                access.block->describe(), " has been freed, but the captured kernel ", launch.name,
                " uses it");
  }
}

}  // namespace

GraphPool::~GraphPool() {
  for (const BlockPtr& block : all_) memory().forget(*block);
  change_counters(device_, [&](Counters& all) { all.bytes -= held_; });
}

BlockPtr GraphPool::allocate(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  count(bytes);
  const auto left =
      std::ranges::find(free_, bytes, [](const BlockPtr& block) { return block->bytes; });
  if (left != free_.end()) {
    BlockPtr block = *left;
    free_.erase(left);
    return block;
  }
  BlockPtr block = memory().allocate(bytes, Place::device, device_);
  block->history = History(bytes, {});  // any stream may use it from the beginning
  return all_.emplace_back(std::move(block));
}

void GraphPool::count(std::size_t bytes) {
  const std::size_t grown = std::max(held_, live_ + bytes) - held_;
  change_counters(device_, [&](Counters& all) {
    check_memory(device_, all.bytes, grown);
    ++all.allocations;
    all.bytes += grown;
    all.peak_bytes = std::max(all.peak_bytes, all.bytes);
  });
  live_ += bytes;
  held_ += grown;
}

void GraphPool::give_back(const BlockPtr& block) {
  const std::lock_guard lock(mutex_);
  live_ -= block->bytes;
  free_.push_back(block);
}

void Graph::replay() {
  refuse_in_capture("a replay");
  change_counters(device_, [](Counters& all) { ++all.replays; });
  const OnDevice on(device_);
  for (const Launch& launch : launches_) {
    check_is_there(launch);
    LaunchedKernel kernel(current_stream(device_), launch.name, launch.accesses);
    std::function<void()> run = launch.run;  // a run uses up its arguments
    if (streams().options().execution == Execution::late) {
      kernel.defer({.run = std::move(run)});
    } else {
      kernel.run(run);
    }
  }
}

std::unique_ptr<Graph> capture(c10::DeviceIndex device, const std::function<void()>& work,
                               std::shared_ptr<GraphPool> pool) {
  if (!pool) pool = std::make_shared<GraphPool>(device);
  auto graph = std::make_unique<Graph>(device, std::move(pool));
  const OnDevice on(device);
  {
    const Recording recording(*graph);
    work();
  }
  change_counters(device, [](Counters& all) { ++all.captures; });
  return graph;
}

Graph* captured() { return recorded; }

void refuse_in_capture(const char* what) {
  TORCH_CHECK(recorded == nullptr, what, " cannot be captured in a graph of the fake device");
}

}  // namespace dtrain::testing::fake
