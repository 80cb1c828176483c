#include "dtrain/parallel/engine/updater.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <utility>

namespace dtrain::parallel {
namespace {

// Optimizer state is never communicated, so it need not lie where the backend communicates from.
param::ArenaAllocator state_allocator(const EngineSetup& setup) {
  return [&setup](std::int64_t bytes) {
    return setup.disk == nullptr ? at::zeros({bytes}, setup.world.options(at::kByte))
                                 : setup.disk->allocate(bytes);
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

// Brings what an optimizer updates from the disk and back: while a range is updated the next one is
// read and the one before is written.
class DiskWindow final : public optim::UpdateObserver {
 public:
  // The arenas lie on `disk`.
  DiskWindow(const param::DiskMemory& disk, std::vector<const param::Arena*> arenas)
      : disk_(disk), arenas_(std::move(arenas)) {}

  void before(param::ElementRange, param::ElementRange next) override {
    if (next.is_empty()) return;
    for (const param::Arena* arena : arenas_) disk_.read_ahead(arena->slice(next));
  }
  void after(param::ElementRange range) override {
    for (const param::Arena* arena : arenas_) disk_.write_back(arena->slice(range));
    finish();
    written_ = range;
  }
  // The update has ended: waits for its last range.
  void finish() {
    if (written_.is_empty()) return;
    for (const param::Arena* arena : arenas_) disk_.release(arena->slice(written_));
    written_ = {};
  }

 private:
  const param::DiskMemory& disk_;
  std::vector<const param::Arena*> arenas_;
  param::ElementRange written_;  // still to be released
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

at::Tensor Updater::norm_of(const param::Arena& values) const {
  const at::Tensor sums = norm_.sums_of(values);
  setup_.groups.shards().all_reduce(sums).wait();
  return norm_.norm(setup_.placement.squares_of_all(norm_.squares(sums)));
}

// The scale is a power of two: dividing by it changes no digit.
at::Tensor Updater::clip(const param::Arena& gradients, double max_norm) const {
  const at::Tensor norm = norm_of(gradients).div_(loss_scale());
  const at::Tensor clipped = optim::clip_factor(norm, max_norm).div_(loss_scale());
  const at::Tensor factor = at::where(at::isfinite(norm), clipped, at::ones_like(clipped));
  for (const param::ElementRange own : setup_.layout.owned_by(setup_.shard())) {
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
                     double learning_rate, const at::Tensor& may_update) {
  if (setup_.disk == nullptr) {
    return optimizer_->step(masters, gradients, learning_rate, may_update);
  }
  DiskWindow window(*setup_.disk, with_state(masters));
  optimizer_->step(masters, gradients, learning_rate, may_update, &window);
  window.finish();
}

std::vector<const param::Arena*> Updater::with_state(const param::Arena& masters) const {
  std::vector<const param::Arena*> arenas{&masters};
  for (const optim::NamedArena& part : optimizer_->state()) arenas.push_back(part.arena);
  return arenas;
}

}  // namespace dtrain::parallel
