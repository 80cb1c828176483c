#include "dtrain/parallel/engine/whole_model.h"

#include <ATen/ops/empty.h>

#include <optional>
#include <utility>

#include "dtrain/comm/long_task.h"
#include "dtrain/param/initialise.h"

namespace dtrain::parallel {
namespace {

constexpr const char* kLossScale = "optimizer.loss_scale";

// A value that all ranks hold.
checkpoint::Piece common_piece(const EngineSetup& setup, const std::string& name,
                               const at::Tensor& values) {
  const comm::ProcessGroup& world = setup.groups.world();
  return {.name = name,
          .global_shape = values.sizes().vec(),
          .box = checkpoint::format::whole(values.sizes()),
          .tensor = values,
          .replica = {.index = world.rank(), .count = world.size()}};
}

}  // namespace

// One parameter at a time in full: less than a unit, which a step needs anyway.
void WholeModel::initialise() {
  const at::NoGradGuard no_grad;
  const param::ArenaLayout& layout = setup_.layout;
  const auto dtype = at::TensorOptions().dtype(setup_.options.precision.master);
  for (const param::ParameterId id : layout.parameters()) {
    const param::ElementRange whole = layout.range(id);
    const param::ElementRange own = layout.range_in(id, setup_.shard());
    if (own.is_empty()) continue;
    const at::Tensor values = at::empty(layout.shape(id), dtype);
    param::initialise(setup_.model.parameters[id], setup_.options.seed, values);
    const at::Tensor master = parameters_.masters().slice(own);
    master.copy_(values.view(-1).narrow(0, own.begin - whole.begin, own.size()));
    if (auto* offload = setup_.memory_of_masters()) offload->release(master);
  }
  parameters_.refresh();
}

// (elements of the unit), where a step computes
at::Tensor WholeModel::gathered_unit(const param::Arena& values, param::UnitId unit) const {
  const param::ElementRange own = setup_.layout.shard_range(unit, setup_.shard());
  const at::Tensor part = values.slice(own).to(setup_.world.device());
  comm::ProcessGroup& shards = setup_.groups.shards();
  if (shards.size() == 1) return part;
  const at::Tensor whole = at::empty({setup_.layout.unit_range(unit).size()}, part.options());
  shards.all_gather(part, whole).wait();
  return whole;
}

void WholeModel::visit(const param::Arena& values, const Visit& visit) {
  parameters_.wait_for_all();  // whole masters may still be on their way
  const param::ArenaLayout& layout = setup_.layout;
  std::optional<param::UnitId> gathered;
  at::Tensor unit;  // (elements of the unit `gathered`)
  for (const param::ParameterId id : layout.parameters()) {
    const param::ElementRange range = layout.range(id);
    at::Tensor part;  // (this rank's slice)
    if (!range.is_empty()) {
      const param::UnitId own = layout.unit_of(id);
      if (std::exchange(gathered, own) != own) unit = gathered_unit(values, own);
      const std::int64_t begin = range.begin - layout.unit_range(own).begin;
      part = unit.narrow(0, begin, range.size()).view(layout.shape(id));
    }
    visit(id,
          setup_.placement.assembled(id, part, setup_.world.options(values.flat().scalar_type())));
  }
}

void WholeModel::make_copies_equal() {
  parameters_.wait_for_all();  // what the last update has sent on its way is read there
  for (const param::ParameterId id : setup_.layout.parameters()) {
    const param::ElementRange own = setup_.layout.range_in(id, setup_.shard());
    if (own.is_empty()) continue;
    for (comm::ProcessGroup* copies : setup_.placement.copies(id)) {
      for (const param::Arena* arena : updater_.with_state(parameters_.masters())) {
        const at::Tensor part = arena->slice(own);
        const at::Tensor values = part.to(setup_.world.device());
        copies->broadcast(values, /*root=*/0).wait();
        if (!values.is_same(part)) part.copy_(values);
      }
    }
  }
  parameters_.refresh();
}

checkpoint::State WholeModel::state() const {
  parameters_.wait_for_all();  // what the last update has sent on its way belongs to its group
  checkpoint::State state;
  const optim::Optimizer& optimizer = updater_.optimizer();
  for (const param::ParameterId id : setup_.layout.parameters()) {
    add_parameter(id, checkpoint::kWeightPrefix, parameters_.masters(), state);
    for (const optim::NamedArena& part : optimizer.state()) {
      add_parameter(id, "optimizer." + part.name + ".", *part.arena, state);
    }
  }
  state.push_back(common_piece(setup_, "optimizer.num_updates", optimizer.num_updates()));
  const optim::GradScaler* scaler = updater_.scaler();
  if (scaler != nullptr) state.push_back(common_piece(setup_, kLossScale, scaler->state()));
  const checkpoint::State carried = gradients_.state();
  state.insert(state.end(), carried.begin(), carried.end());
  return state;
}

// One rank's values of a parameter, in as many boxes as the cut of its shard takes.
void WholeModel::add_parameter(param::ParameterId id, const std::string& prefix,
                               const param::Arena& arena, checkpoint::State& state) const {
  const param::ArenaLayout& layout = setup_.layout;
  const param::ElementRange whole = layout.range(id);
  const param::ElementRange own = layout.range_in(id, setup_.shard());
  if (own.is_empty()) return;
  const checkpoint::Replica replica = setup_.placement.replica(id);
  const param::ParameterSpec& spec = setup_.model.parameters[id];
  std::int64_t begin = own.begin;
  for (checkpoint::Box& box : checkpoint::format::boxes_of_run(
           layout.shape(id), own.begin - whole.begin, own.end - whole.begin)) {
    const std::int64_t end = begin + checkpoint::format::num_elements(box.sizes);
    const at::Tensor values = arena.slice({begin, end}).view(box.sizes);
    begin = end;
    state.push_back({.name = prefix + spec.name,
                     .global_shape = spec.whole_shape(),
                     .box = setup_.placement.in_whole(id, std::move(box)),
                     .tensor = values,
                     .replica = replica});
  }
}

void WholeModel::load_state(checkpoint::Source& source) {
  // A run that goes on with another reducer starts with nothing carried; one that lost a part of it
  // must not.
  const checkpoint::State carried = gradients_.state();
  const bool is_carried = std::ranges::any_of(
      carried, [&](const checkpoint::Piece& piece) { return source.has(piece.name); });
  if (!is_carried) {
    for (const checkpoint::Piece& piece : carried) at::Tensor(piece.tensor).zero_();
  }
  load(source, "reading a checkpoint", [&](const std::string& name) {
    if (name.starts_with(kReducerPrefix)) return is_carried;
    // A run that goes on in float16 starts with a scale of its own.
    return name != kLossScale || source.has(name);
  });
}

void WholeModel::load_weights(checkpoint::Source& source) {
  load(source, "reading weights",
       [](const std::string& name) { return name.starts_with(checkpoint::kWeightPrefix); });
}

void WholeModel::load(checkpoint::Source& source, const std::string& task,
                      const std::function<bool(const std::string& name)>& is_wanted) {
  const checkpoint::State pieces = state();
  comm::run_long(setup_.world.control(), task, [&] {
    const at::NoGradGuard no_grad;
    for (const checkpoint::Piece& piece : pieces) {
      if (is_wanted(piece.name)) source.read(piece);
    }
  });
  const at::NoGradGuard no_grad;
  parameters_.refresh();
}

}  // namespace dtrain::parallel
