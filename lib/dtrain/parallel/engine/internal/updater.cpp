#include "dtrain/parallel/engine/internal/updater.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace dtrain::parallel {
namespace {

// Optimizer state is never communicated, so it needs no memory that the backend can reach.
param::ArenaAllocator state_allocator(const EngineSetup& setup) {
  return [&setup](std::int64_t bytes) {
    return setup.offload == nullptr ? at::zeros({bytes}, setup.world.options(at::kByte))
                                    : setup.offload->allocate(bytes);
  };
}

std::unique_ptr<optim::Optimizer> make_optimizer(const EngineSetup& setup) {
  const param::ArenaAllocator allocate = state_allocator(setup);
  return optim::make_optimizer({.layout = setup.layout,
                                .specs = setup.model.parameters,
                                .shard = setup.shard(),
                                .dtype = setup.options.precision.master,
                                .allocate = allocate,
                                .device = setup.world.device()},
                               setup.options.optimizer);
}

// Streams the values of an update from offload memory and back: while one range is updated, the
// next is fetched and the previous one is stored.
class OffloadWindow final : public optim::UpdateWindow {
 public:
  // The arenas are allocated in `memory`.
  OffloadWindow(param::OffloadMemory& memory, std::vector<const param::Arena*> arenas)
      : memory_(memory), arenas_(std::move(arenas)) {}

  void before(param::ElementRange range, param::ElementRange next) override {
    if (next_.empty()) next_ = fetch(range);
    now_ = std::exchange(next_, fetch(next));
    for (const param::Fetched& fetched : now_) (void)fetched.wait();
  }
  at::Tensor values(const param::Arena& arena, param::ElementRange range) override {
    const auto found = std::find(arenas_.begin(), arenas_.end(), &arena);
    if (found == arenas_.end()) return arena.slice(range);
    return now_[static_cast<std::size_t>(found - arenas_.begin())].values;
  }
  void after(param::ElementRange range) override {
    for (std::size_t i = 0; i < arenas_.size(); ++i) {
      memory_.store(now_[i].values, arenas_[i]->slice(range));
    }
    now_.clear();
    release();
    stored_ = range;
  }
  // Call when the update has ended.
  void finish() {
    release();
    memory_.wait_for_transfers();
  }

 private:
  std::vector<param::Fetched> fetch(param::ElementRange range) {
    std::vector<param::Fetched> fetched;
    if (range.is_empty()) return fetched;
    for (const param::Arena* arena : arenas_) fetched.push_back(memory_.fetch(arena->slice(range)));
    return fetched;
  }
  void release() {
    if (stored_.is_empty()) return;
    for (const param::Arena* arena : arenas_) memory_.release(arena->slice(stored_));
    stored_ = {};
  }

  param::OffloadMemory& memory_;
  std::vector<const param::Arena*> arenas_;
  std::vector<param::Fetched> now_;  // by arena
  std::vector<param::Fetched> next_;
  param::ElementRange stored_;  // not released yet
};

}  // namespace

Updater::Updater(const EngineSetup& setup)
    : setup_(setup),
      norm_(setup.layout, setup.model.parameters, setup.shard(), setup.world.device()),
      optimizer_(make_optimizer(setup)) {}

MemoryPlan Updater::memory(const model::Model& model, const EngineOptions& options) {
  const std::int64_t bytes = optim::state_bytes(options.optimizer, engine_layout(model, options),
                                                options.precision.master);
  return {.optimizer = bytes, .state = bytes};
}

std::int64_t Updater::window_bytes(const model::Model& model, const EngineOptions& options) {
  const param::ArenaLayout layout = engine_layout(model, options);
  const at::ScalarType dtype = options.precision.master;
  const std::int64_t shard = param::Arena::bytes_of_trained_shard(layout, dtype);
  const std::int64_t arenas =
      optim::values_per_element(options.optimizer) + (options.offloads_masters() ? 1 : 0);
  const std::int64_t ranges = param::bytes_of(2 * optim::Optimizer::kWindowElements, dtype);
  return arenas * std::min(ranges, shard);
}

at::Tensor Updater::norm_of(const param::Arena& values) const {
  const at::Tensor sums = sums_of(values);
  setup_.groups.shards().all_reduce(sums).wait();
  return norm_.norm(setup_.placement.squares_of_all(norm_.squares(sums)));
}

// Values in host memory are summed by the host.
at::Tensor Updater::sums_of(const param::Arena& values) const {
  const c10::Device device = setup_.world.device();
  const c10::Device own = values.flat().device();
  if (own == device) return norm_.sums_of(values);
  return optim::GlobalNorm(setup_.layout, setup_.model.parameters, setup_.shard(), own)
      .sums_of(values)
      .to(device);
}

// The scale is a power of two, so dividing by it is exact.
at::Tensor Updater::clip(const param::Arena& gradients, double max_norm) const {
  const at::Tensor norm = norm_of(gradients).div_(loss_scale());  // () float64
  // () float64, both
  const at::Tensor clipped = optim::clip_factor(norm, max_norm).div_(loss_scale());
  const at::Tensor factor = at::where(at::isfinite(norm), clipped, at::ones_like(clipped));
  for (const param::ElementRange own :
       setup_.layout.ranges(param::Elements::trained, setup_.shard())) {
    optim::scale_by(gradients.slice(own), factor);
  }
  return norm;
}

bool Updater::adjust_scale(double grad_norm) {
  if (!setup_.options.precision.scales_loss) return false;
  const bool overflowed = !std::isfinite(grad_norm);
  scaler_.update(overflowed);
  return overflowed;
}

void Updater::update(const param::Arena& masters, const param::Arena& gradients,
                     double learning_rate, const at::Tensor& may_update,
                     const std::function<void(std::int64_t end)>& updated_to) {
  if (setup_.offload == nullptr) {
    return optimizer_->step(masters, gradients, learning_rate, may_update, nullptr, updated_to);
  }
  std::vector<const param::Arena*> offloaded = with_state(masters);
  if (!setup_.options.offloads_masters()) offloaded.erase(offloaded.begin());
  OffloadWindow window(*setup_.offload, std::move(offloaded));
  optimizer_->step(masters, gradients, learning_rate, may_update, &window, updated_to);
  window.finish();
}

std::vector<const param::Arena*> Updater::with_state(const param::Arena& masters) const {
  std::vector<const param::Arena*> arenas{&masters};
  for (const optim::NamedArena& part : optimizer_->state()) arenas.push_back(part.arena);
  return arenas;
}

}  // namespace dtrain::parallel
