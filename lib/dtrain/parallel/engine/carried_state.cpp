#include "dtrain/parallel/engine/carried_state.h"

#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include <algorithm>

#include "dtrain/parallel/engine/whole_model.h"

namespace dtrain::parallel {
namespace {

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

checkpoint::State residual_pieces(const EngineSetup& setup, param::ParameterId id,
                                  const param::Arena& residuals) {
  checkpoint::State pieces;
  // The residual of a frozen parameter would be sent for nothing, and clipping would count it.
  if (setup.layout.is_frozen(id)) return pieces;
  add_parameter_pieces(setup, id, residual_name(contributor(setup, id).index),
                       tensor_replica(setup, id), residuals, pieces);
  return pieces;
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

}  // namespace

checkpoint::State carried_pieces(const EngineSetup& setup, const Carried& carried) {
  checkpoint::State state;
  if (carried.residuals != nullptr) {
    for (const param::ParameterId id : setup.layout.parameters()) {
      for (checkpoint::Piece& piece : residual_pieces(setup, id, *carried.residuals)) {
        state.push_back(std::move(piece));
      }
    }
  }
  for (const Carried::Factor& factor : carried.factors) {
    state.push_back(factor_piece(setup, factor));
  }
  return state;
}

void load_carried(const EngineSetup& setup, const Carried& carried, checkpoint::Source& source) {
  if (carried.residuals != nullptr) {
    for (const param::ParameterId id : setup.layout.parameters()) {
      for (const checkpoint::Piece& piece : residual_pieces(setup, id, *carried.residuals)) {
        read_residual(contributor(setup, id), setup.model.parameters[id].name, piece, source);
      }
    }
  }
  for (const Carried::Factor& factor : carried.factors) {
    const checkpoint::Piece piece = factor_piece(setup, factor);
    if (source.has(piece.name)) source.read(piece);
  }
}

bool leaves_residuals(const EngineSetup& setup, const Carried& carried,
                      checkpoint::Source& source) {
  if (carried.residuals != nullptr) return false;
  for (const param::ParameterId id : setup.layout.parameters()) {
    if (source.has(residual_name(0) + setup.model.parameters[id].name)) return true;
  }
  return false;
}

}  // namespace dtrain::parallel
