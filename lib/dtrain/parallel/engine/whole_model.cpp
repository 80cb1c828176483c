#include "dtrain/parallel/engine/whole_model.h"

#include <ATen/core/grad_mode.h>
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

// Returns a name such as "optimizer.exp_avg.NAME".
std::string state_name(const optim::NamedArena& part, const std::string& parameter) {
  return "optimizer." + part.name + "." + parameter;
}

// A piece that all ranks hold.
checkpoint::Piece common_piece(const EngineSetup& setup, const std::string& name,
                               const at::Tensor& values) {
  const comm::ProcessGroup& world = setup.groups.world();
  return {.name = name,
          .global_shape = values.sizes().vec(),
          .box = checkpoint::format::whole(values.sizes()),
          .tensor = values,
          .replica = {.index = world.rank(), .count = world.size()}};
}

/// Adds the parameter's values in an arena, sharing memory, as the boxes that make up the rank's
/// shard. name: prefix of the parameter's name.
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

// Index of a rank among those whose gradients of a parameter are summed.
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

// Tensor-parallel ranks hold slices of a parameter, or copies.
checkpoint::Replica tensor_replica(const EngineSetup& setup, param::ParameterId id) {
  const comm::ProcessGroup& tensor = setup.groups.along(mesh::Axis::tp);
  if (setup.model.parameters[id].cut) return {};
  return {.index = tensor.rank(), .count = tensor.size()};
}

std::string residual_name(std::int64_t contributor) {
  return fmt::format("{}residual.{}.", kReducerPrefix, contributor);
}

// Residuals of frozen parameters are useless, and clipping would count them.
void add_residual_pieces(const EngineSetup& setup, param::ParameterId id,
                         const param::Arena& residuals, checkpoint::State& state) {
  if (setup.layout.is_frozen(id)) return;
  add_parameter_pieces(setup, id, residual_name(contributor(setup, id).index),
                       tensor_replica(setup, id), residuals, state);
}

// The name encodes everything that determines where the factor applies.
checkpoint::Piece factor_piece(const EngineSetup& setup, const ErrorFeedbackState::Factor& factor) {
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

// Reads the sum of the saved residuals assigned to this contributor; zeros if there are none.
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

/// Adds this rank's part of the gradient reducer's error-feedback state, sharing memory.
///
/// reducer.residual.C.NAME: residuals of contributor C, in the parameter's storage shape.
/// Contributors to a parameter's gradient are numbered by stage, then by replica.
/// reducer.factor.PLACE.NAME: equal on all ranks that hold the same part of the parameter.
void add_error_feedback_pieces(const EngineSetup& setup, const ErrorFeedbackState& feedback,
                               checkpoint::State& state) {
  if (feedback.residuals != nullptr) {
    for (const param::ParameterId id : setup.layout.parameters()) {
      add_residual_pieces(setup, id, *feedback.residuals, state);
    }
  }
  for (const ErrorFeedbackState::Factor& factor : feedback.factors) {
    state.push_back(factor_piece(setup, factor));
  }
}

/// Loads this rank's error-feedback state. With C contributors, contributor c takes the sum of the
/// residuals saved as c, c + C, c + 2C, ..., added in this order, so any layout keeps their total.
/// Missing residuals are 0; frozen parameters have none. Factors of parts that were cut differently
/// are reinitialised.
void load_error_feedback(const EngineSetup& setup, const ErrorFeedbackState& feedback,
                         checkpoint::Source& source) {
  if (feedback.residuals != nullptr) {
    for (const param::ParameterId id : setup.layout.parameters()) {
      checkpoint::State pieces;
      add_residual_pieces(setup, id, *feedback.residuals, pieces);
      for (const checkpoint::Piece& piece : pieces) {
        read_residual(contributor(setup, id), setup.model.parameters[id].name, piece, source);
      }
    }
  }
  for (const ErrorFeedbackState::Factor& factor : feedback.factors) {
    const checkpoint::Piece piece = factor_piece(setup, factor);
    if (source.has(piece.name)) source.read(piece);
  }
}

/// True if the source has residuals for this rank's parameters and the reducer keeps none.
bool drops_residuals(const EngineSetup& setup, const ErrorFeedbackState& feedback,
                     checkpoint::Source& source) {
  if (feedback.residuals != nullptr) return false;
  for (const param::ParameterId id : setup.layout.parameters()) {
    if (source.has(residual_name(0) + setup.model.parameters[id].name)) return true;
  }
  return false;
}

}  // namespace

// Holds one whole parameter at a time: less than a unit, which a step needs anyway.
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

// Returns (elements of the unit) on the compute device.
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

void WholeModel::visit_arena(const param::Arena& values, const Visit& visit) {
  parameters_.wait_for_all();  // gathers of whole masters may still be in flight
  const param::ArenaLayout& layout = setup_.layout;
  std::optional<param::UnitId> gathered;
  at::Tensor unit;  // (elements of the unit `gathered`)
  for (const param::ParameterId id : layout.parameters()) {
    const param::ElementRange range = layout.range(id);
    at::Tensor part;  // (this rank's slice)
    if (!range.is_empty()) {
      const param::UnitId own = layout.unit_of(id);
      if (std::exchange(gathered, own) != own) {
        unit = at::Tensor();  // freed before the next one is gathered
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
  parameters_.wait_for_all();  // finish gathers of the last update, which read the masters
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
  parameters_.wait_for_all();  // finish gathers of the last update, which use the same groups
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
  add_error_feedback_pieces(setup_, gradients_.error_feedback(), state);
  return state;
}

// Returns the parameters whose optimizer state may be missing from the source, and is.
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
      // A run resumed in float16 from another dtype starts with a fresh loss scale.
      const bool is_reset = piece.name == kLossScale && !source.has(piece.name);
      if (is_reset || piece.name.starts_with(kReducerPrefix)) continue;
      if (missing.contains(piece.name)) {
        at::Tensor(piece.tensor).zero_();
      } else {
        source.read(piece);
      }
    }
    if (setup_.world.rank() == 0 && !restarted.empty()) {
      base::log_warning(
          "the checkpoint has no moments of {}, which were frozen in its run: moments start at "
          "zero",
          fmt::join(restarted, ", "));
    }
    load_error_feedback(setup_, gradients_.error_feedback(), source);
    if (setup_.world.rank() != 0 || !drops_residuals(setup_, gradients_.error_feedback(), source))
      return;
    base::log_warning(
        "the checkpoint has residuals of compressed gradients (--compress); they are dropped, "
        "because this run does not compress gradients between ranks");
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
