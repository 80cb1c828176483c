#include "dtrain/parallel/data/internal/parameter_store.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/trace.h"

namespace dtrain::parallel {
namespace {

bool copies_are_masters(const ParameterStore::Options& options) {
  return options.master_dtype == options.compute_dtype && options.keeps_units;
}

param::Arena make_masters(const param::ArenaLayout& layout, comm::ProcessGroup& shards,
                          const param::ArenaAllocator& allocate,
                          const ParameterStore::Options& options) {
  if (options.offload != nullptr) {
    return param::Arena::of_shard(
        layout, param::ShardId(shards.rank()), options.master_dtype,
        [&options](std::int64_t bytes) { return options.offload->allocate(bytes); });
  }
  if (copies_are_masters(options)) return {layout, options.master_dtype, allocate};
  return param::Arena::of_shard(layout, param::ShardId(shards.rank()), options.master_dtype,
                                allocate);
}

// Returns the peak number of elements in gathered units.
std::int64_t peak_gathered(const param::ArenaLayout& layout, const UnitSchedule& schedule) {
  std::int64_t now = 0;
  std::int64_t most = 0;
  schedule.for_each([&](const UnitEvent& event) {
    const std::int64_t size = layout.unit_range(event.unit).size();
    if (event.kind == UnitEventKind::gather) now += size;
    if (event.kind == UnitEventKind::free) now -= size;
    most = std::max(most, now);
  });
  return most;
}

}  // namespace

MemoryPlan ParameterStore::memory(const param::ArenaLayout& layout, const UnitSchedule& schedule,
                                  const Options& options) {
  using param::Arena;
  const std::int64_t shard = Arena::bytes_of_shard(layout, options.master_dtype);
  if (copies_are_masters(options)) {
    return {.parameters = Arena::bytes(layout, options.master_dtype), .state = shard};
  }
  if (options.keeps_units) {
    return {.parameters = shard + Arena::bytes(layout, options.compute_dtype), .state = shard};
  }
  // A rank's shard of a unit is cast before it is sent.
  const bool sends_copies =
      options.master_dtype != options.compute_dtype && layout.num_shards() > 1;
  const std::int64_t sent = sends_copies ? layout.largest_unit() / layout.num_shards() : 0;
  return {.parameters = shard,
          .units = param::bytes_of(peak_gathered(layout, schedule) + sent, options.compute_dtype),
          .state = shard};
}

ParameterStore::ParameterStore(const param::ArenaLayout& layout, comm::ProcessGroup& shards,
                               const param::ArenaAllocator& allocate, const Options& options)
    : layout_(layout),
      shards_(shards),
      options_(options),
      masters_(make_masters(layout, shards, allocate, options)),
      units_(layout.num_units()) {
  const bool shares = copies_are_masters(options);
  const c10::Device device =
      options.offload == nullptr ? masters_.flat().device() : options.offload->device();
  const at::TensorOptions copies = at::TensorOptions(device).dtype(options.compute_dtype);
  for (const param::UnitId unit : layout.units()) {
    auto& buffer = units_[unit].buffer;
    if (!shares) {
      buffer = std::make_unique<UnitBuffer>(layout, unit, copies, allocate);
      if (options.keeps_units) buffer->allocate();
    }
    for (const param::ParameterId id : layout.parameters_of(unit)) {
      views_.push_back(shares ? masters_.view(id) : buffer->view(id));
    }
  }
}

at::Tensor ParameterStore::unit_values(param::UnitId unit) const {
  const auto& buffer = units_[unit].buffer;
  return buffer == nullptr ? masters_.slice(layout_.unit_range(unit)) : buffer->flat();
}

bool ParameterStore::is_gathered(param::UnitId unit) const {
  const auto& buffer = units_[unit].buffer;
  return buffer == nullptr || buffer->is_allocated();
}

void ParameterStore::begin_gather(param::UnitId id) {
  Unit& unit = units_[id];
  DTRAIN_CHECK(!options_.keeps_units, "unit {} is never freed", id.value());
  unit.buffer->allocate();
  gather_into(unit, id, unit.buffer->flat());
}

void ParameterStore::gather_into(Unit& unit, param::UnitId id, const at::Tensor& target) {
  const at::NoGradGuard no_grad;
  unit.part = {.values = own_part(id)};
  if (options_.offload != nullptr) unit.part = options_.offload->fetch(unit.part.values);
  if (shards_.size() == 1) return;  // wait() copies it
  unit.sent = unit.part.wait().to(options_.compute_dtype);
  if (!unit.sent.is_same(unit.part.values)) release_part(unit, id);
  unit.gathered = shards_.all_gather(unit.sent, target);
}

at::Tensor ParameterStore::own_part(param::UnitId id) const {
  return masters_.slice(layout_.shard_range(id, param::ShardId(shards_.rank())));
}

// All reads of the shard have been enqueued on the caller's stream.
void ParameterStore::release_part(Unit& unit, param::UnitId id) {
  if (!unit.part.values.defined()) return;
  if (options_.offload != nullptr) options_.offload->release(own_part(id));
  unit.part = {};
}

void ParameterStore::wait(param::UnitId id) {
  Unit& unit = units_[id];
  if (unit.part.values.defined() && shards_.size() == 1) {
    const at::NoGradGuard no_grad;
    at::Tensor target = unit_values(id);
    target.copy_(unit.part.wait());
  }
  unit.gathered.wait();
  unit.gathered = {};
  release_part(unit, id);
  unit.sent = at::Tensor();
}

void ParameterStore::free(param::UnitId id) {
  wait(id);
  units_[id].buffer->release();
}

// False if units are gathered within a step, or if blocks read what the optimizer writes.
bool ParameterStore::keeps_copies() const {
  const bool shares = units_.front().buffer == nullptr;
  return options_.keeps_units && !(shares && shards_.size() == 1);
}

void ParameterStore::refresh(param::UnitId id) {
  const base::Span span("gather unit", base::TracePart::units, {"unit", id.value()});
  gather_into(units_[id], id, unit_values(id));
}

void ParameterStore::refresh() {
  if (!keeps_copies()) return;
  for (const param::UnitId unit : layout_.units()) refresh(unit);
}

void ParameterStore::refresh_trained() {
  refresh_trained_to(std::numeric_limits<std::int64_t>::max());
  next_refreshed_ = param::UnitId(0);
}

void ParameterStore::refresh_trained_to(std::int64_t end) {
  if (!keeps_copies()) return;
  for (; next_refreshed_.value() < layout_.num_units(); ++next_refreshed_) {
    const param::UnitId unit = next_refreshed_;
    if (layout_.is_frozen(unit)) continue;
    if (layout_.shard_range(unit, param::ShardId(shards_.rank())).end > end) return;
    refresh(unit);
  }
}

void ParameterStore::wait_for_all() {
  for (const param::UnitId unit : layout_.units()) wait(unit);
}

}  // namespace dtrain::parallel
