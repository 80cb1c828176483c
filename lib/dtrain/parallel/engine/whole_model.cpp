#include "dtrain/parallel/engine/whole_model.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "dtrain/base/log.h"
#include "dtrain/checkpoint/format/box.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/param/parameter_spec.h"

namespace dtrain::parallel {
namespace {

constexpr const char* kLossScale = "optimizer.loss_scale";
constexpr const char* kReducerPrefix = "reducer.";

// As "optimizer.exp_avg.NAME".
std::string state_name(const optim::NamedArena& part, const std::string& parameter) {
  return "optimizer." + part.name + "." + parameter;
}

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

/// Adds the parameter's values in an arena, in as many boxes as the cut of the rank's shard takes;
/// they share memory. name: without the parameter's own, which follows.
void add_parameter_pieces(const EngineSetup& setup, param::ParameterId id, const std::string& name,
                          const checkpoint::Replica& replica, const param::Arena& arena,
                          checkpoint::State& state) {
  const param::ArenaLayout& layout = setup.layout;
  const param::ElementRange whole = layout.range(id);
  const param::ElementRange own = layout.range_in(id, setup.shard());
  if (own.is_empty()) return;
  const param::ParameterSpec& spec = setup.model.parameters[id];
  std::int64_t begin = own.begin;
  for (checkpoint::Box& box : checkpoint::format::boxes_of_run(
           layout.shape(id), own.begin - whole.begin, own.end - whole.begin)) {
    const std::int64_t end = begin + checkpoint::format::num_elements(box.sizes);
    const at::Tensor values = arena.slice({begin, end}).view(box.sizes);
    begin = end;
    state.push_back({.name = name + spec.name,
                     .global_shape = spec.whole_shape(),
                     .box = setup.placement.in_whole(id, std::move(box)),
                     .tensor = values,
                     .replica = replica});
  }
}

// One of the ranks whose gradients of a parameter are added.
struct Contributor {
  std::int64_t index = 0;
  std::int64_t count = 1;
};

Contributor contributor(const EngineSetup& setup, param::ParameterId id) {
  const comm::ProcessGroup& stages = setup.placement.stages(id);
  const comm::ProcessGroup& replicas = setup.groups.replicas();
  return {.index = stages.rank() * replicas.size() + replicas.rank(),
          .count = stages.size() * replicas.size()};
}

// Ranks of the tensor axis hold slices of a parameter, or the same.
checkpoint::Replica tensor_replica(const EngineSetup& setup, param::ParameterId id) {
  const comm::ProcessGroup& tensor = setup.groups.along(mesh::Axis::tp);
  if (setup.model.parameters[id].cut) return {};
  return {.index = tensor.rank(), .count = tensor.size()};
}

std::string residual_name(std::int64_t contributor) {
  return fmt::format("{}residual.{}.", kReducerPrefix, contributor);
}

// The residual of a frozen parameter would be sent for nothing, and clipping would count it.
void add_residual_pieces(const EngineSetup& setup, param::ParameterId id,
                         const param::Arena& residuals, checkpoint::State& state) {
  if (setup.layout.is_frozen(id)) return;
  add_parameter_pieces(setup, id, residual_name(contributor(setup, id).index),
                       tensor_replica(setup, id), residuals, state);
}

// Named after all that decides what the values belong to.
checkpoint::Piece factor_piece(const EngineSetup& setup, const Carried::Factor& factor) {
  const param::ParameterSpec& spec = setup.model.parameters[factor.id];
  const std::int64_t begin = setup.layout.range(factor.id).begin;
  const std::string slice =
      spec.cut ? fmt::format("_cut{}_{}", spec.cut->dim, spec.cut->begin) : std::string();
  const comm::ProcessGroup& replicas = setup.groups.replicas();
  checkpoint::Replica replica = tensor_replica(setup, factor.id);
  replica = {.index = replica.index * replicas.size() + replicas.rank(),
             .count = replica.count * replicas.size()};
  return {.name = fmt::format("{}factor.stage{}_{}_{}{}_{}x{}.{}", kReducerPrefix,
                              setup.placement.stages(factor.id).rank(), factor.range.begin - begin,
                              factor.range.end - begin, slice, factor.values.size(0),
                              factor.values.size(1), spec.name),
          .global_shape = factor.values.sizes().vec(),
          .box = checkpoint::format::whole(factor.values.sizes()),
          .tensor = factor.values,
          .replica = replica};
}

// The piece of one contributor after the other that falls to this one; false: there is none.
void read_residual(const Contributor& own, const std::string& parameter,
                   const checkpoint::Piece& piece, checkpoint::Source& source) {
  at::Tensor(piece.tensor).zero_();
  for (std::int64_t saved = own.index;; saved += own.count) {
    checkpoint::Piece other = piece;
    other.name = residual_name(saved) + parameter;
    if (!source.has(other.name)) return;
    if (saved == own.index) {
      source.read(other);
    } else {
      other.tensor = at::empty_like(piece.tensor);
      source.read(other);
      at::Tensor(piece.tensor).add_(other.tensor);
    }
  }
}

/// Adds this rank's part of what gradient reducers carry from step to step, sharing memory.
///
/// reducer.residual.C.NAME: those of contributor C, in the parameter's storage shape. Contributors
/// to a parameter's gradient are counted over the stages that hold it, and in each over replicas.
/// reducer.factor.PLACE.NAME: equal on all ranks that hold the same part of the parameter.
void add_carried_pieces(const EngineSetup& setup, const Carried& carried,
                        checkpoint::State& state) {
  if (carried.residuals != nullptr) {
    for (const param::ParameterId id : setup.layout.parameters()) {
      add_residual_pieces(setup, id, *carried.residuals, state);
    }
  }
  for (const Carried::Factor& factor : carried.factors) {
    state.push_back(factor_piece(setup, factor));
  }
}

/// Loads what the rank carries. With C contributors, contributor c takes the sum of the residuals
/// saved as c, c + C, c + 2C, ..., added in this order; so any layout keeps their total. Without
/// saved residuals it starts at 0. Frozen parameters have none. A factor that was saved for another
/// part starts anew.
void load_carried(const EngineSetup& setup, const Carried& carried, checkpoint::Source& source) {
  if (carried.residuals != nullptr) {
    for (const param::ParameterId id : setup.layout.parameters()) {
      checkpoint::State pieces;
      add_residual_pieces(setup, id, *carried.residuals, pieces);
      for (const checkpoint::Piece& piece : pieces) {
        read_residual(contributor(setup, id), setup.model.parameters[id].name, piece, source);
      }
    }
  }
  for (const Carried::Factor& factor : carried.factors) {
    const checkpoint::Piece piece = factor_piece(setup, factor);
    if (source.has(piece.name)) source.read(piece);
  }
}

/// Returns whether there are residuals for this rank's parameters that `carried` has no place for.
bool leaves_residuals(const EngineSetup& setup, const Carried& carried,
                      checkpoint::Source& source) {
  if (carried.residuals != nullptr) return false;
  for (const param::ParameterId id : setup.layout.parameters()) {
    if (source.has(residual_name(0) + setup.model.parameters[id].name)) return true;
  }
  return false;
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
  if (!values.holds(own)) {  // gradients of frozen parameters
    return at::zeros({setup_.layout.unit_range(unit).size()},
                     values.flat().options().device(setup_.world.device()));
  }
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
      if (std::exchange(gathered, own) != own) {
        unit = at::Tensor();  // before another one is there
        unit = gathered_unit(values, own);
      }
      const std::int64_t begin = range.begin - layout.unit_range(own).begin;
      part = unit.narrow(0, begin, range.size()).view(layout.shape(id));
    }
    visit(id,
          setup_.placement.assembled(id, part, setup_.world.options(values.flat().scalar_type())));
  }
}

std::int64_t WholeModel::visit_bytes(const model::Model& model, const param::ArenaLayout& layout,
                                     at::ScalarType dtype) {
  std::int64_t assembled = 0;  // elements
  for (const param::ParameterSpec& spec : model.parameters) {
    assembled = std::max(assembled, Placement::assembled_elements(spec));
  }
  const std::int64_t unit = layout.num_shards() == 1 ? 0 : layout.largest_unit();
  return param::bytes_of(unit + assembled, dtype);
}

void WholeModel::make_copies_equal() {
  parameters_.wait_for_all();  // what the last update has sent on its way is read there
  for (const param::ParameterId id : setup_.layout.parameters()) {
    const param::ElementRange own = setup_.layout.range_in(id, setup_.shard());
    if (own.is_empty()) continue;
    for (comm::ProcessGroup* copies : setup_.placement.copies(id)) {
      for (const param::Arena* arena : updater_.with_state(parameters_.masters())) {
        if (!arena->holds(own)) continue;  // state of a frozen parameter
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
    const checkpoint::Replica replica = setup_.placement.replica(id);
    add_parameter_pieces(setup_, id, checkpoint::kWeightPrefix, replica, parameters_.masters(),
                         state);
    if (setup_.layout.is_frozen(id)) continue;
    for (const optim::NamedArena& part : optimizer.state()) {
      add_parameter_pieces(setup_, id, state_name(part, {}), replica, *part.arena, state);
    }
  }
  state.push_back(common_piece(setup_, "optimizer.num_updates", optimizer.num_updates()));
  const optim::GradScaler* scaler = updater_.scaler();
  if (scaler != nullptr) state.push_back(common_piece(setup_, kLossScale, scaler->state()));
  add_carried_pieces(setup_, gradients_.carried(), state);
  return state;
}

// Names of the parameters whose optimizer state the source may lack, and does.
std::vector<std::string> WholeModel::without_state(
    const checkpoint::Source& source, std::span<const std::string> frozen_before) const {
  const std::vector<optim::NamedArena> parts = updater_.optimizer().state();
  std::vector<std::string> names;
  for (const param::ParameterId id : setup_.layout.parameters()) {
    const std::string& name = setup_.model.parameters[id].name;
    const bool may_lack = !parts.empty() && !setup_.layout.is_frozen(id) &&
                          std::ranges::find(frozen_before, name) != frozen_before.end();
    const auto has = [&](const optim::NamedArena& part) {
      return source.has(state_name(part, name));
    };
    if (may_lack && std::ranges::none_of(parts, has)) names.push_back(name);
  }
  return names;
}

void WholeModel::load_state(checkpoint::Source& source,
                            std::span<const std::string> frozen_before) {
  load("reading a checkpoint", [&](const checkpoint::State& pieces) {
    const std::vector<std::string> restarted = without_state(source, frozen_before);
    std::set<std::string> missing;  // pieces
    for (const std::string& name : restarted) {
      for (const optim::NamedArena& part : updater_.optimizer().state()) {
        missing.insert(state_name(part, name));
      }
    }
    for (const checkpoint::Piece& piece : pieces) {
      // A run that goes on in float16 starts with a scale of its own.
      const bool begins_anew = piece.name == kLossScale && !source.has(piece.name);
      if (begins_anew || piece.name.starts_with(kReducerPrefix)) continue;
      if (missing.contains(piece.name)) {
        at::Tensor(piece.tensor).zero_();
      } else {
        source.read(piece);
      }
    }
    if (setup_.world.rank() == 0 && !restarted.empty()) {
      base::log_warning(
          "the checkpoint has no moments of {}, which its run froze: they start at zero",
          fmt::join(restarted, ", "));
    }
    load_carried(setup_, gradients_.carried(), source);
    if (setup_.world.rank() != 0 || !leaves_residuals(setup_, gradients_.carried(), source)) return;
    base::log_warning(
        "the checkpoint has gradients that ranks had not sent yet (--compress); without "
        "compression "
        "between several ranks they are left out");
  });
}

void WholeModel::load_weights(checkpoint::Source& source) {
  load("reading weights", [&](const checkpoint::State& pieces) {
    for (const checkpoint::Piece& piece : pieces) {
      if (piece.name.starts_with(checkpoint::kWeightPrefix)) source.read(piece);
    }
  });
}

void WholeModel::load(const std::string& task,
                      const std::function<void(const checkpoint::State& pieces)>& read) {
  const checkpoint::State pieces = state();
  comm::run_long(setup_.world.control(), task, [&] {
    const at::NoGradGuard no_grad;
    read(pieces);
  });
  const at::NoGradGuard no_grad;
  parameters_.refresh();
}

}  // namespace dtrain::parallel
