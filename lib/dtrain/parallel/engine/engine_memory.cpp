#include "dtrain/parallel/engine/engine_memory.h"

#include <algorithm>

namespace dtrain::parallel {
namespace {

constexpr std::int64_t kTokenBytes = 2 * 8;  // its id and its target

ReceivedInputs received_inputs(const model::Model& model, const EngineOptions& options,
                               const model::BatchShape& microbatch) {
  const auto element = static_cast<std::int64_t>(c10::elementSize(options.precision.compute));
  ReceivedInputs received{.bytes = microbatch.rows() * model.width * element};
  for (const std::int64_t block : options.stage.chunk_begins) {
    if (block > 0 || !model.takes_tokens) received.blocks.push_back(block);
  }
  return received;
}

}  // namespace

EngineMemory engine_memory(const model::Model& model, const EngineOptions& options,
                           const model::BatchShape& microbatch) {
  const param::ArenaLayout layout = engine_layout(model, options);
  const ActionLists lists = engine_actions(model, options);
  const UnitSchedule schedule = make_unit_schedule(
      lists.step, unit_uses(model, layout, options.recompute), options.data.schedule);
  std::vector<model::BlockMemory> blocks;
  for (const auto& block : model.blocks) blocks.push_back(block->memory(microbatch));
  const auto table_size = static_cast<std::int64_t>(c10::elementSize(options.precision.buffer));
  DataMemory data = data_memory(layout, schedule, axis_options(options, lists),
                                optim::values_per_element(options.optimizer));
  const bool is_on_disk = !options.disk_folder.empty();
  if (is_on_disk) data.parameters = data.optimizer = 0;
  const ActivationMemory activations = activation_memory(
      blocks, lists.step, options.recompute, received_inputs(model, options, microbatch));
  // Gradients travel when their blocks' activations are gone: those of one block, where units are
  // reduced one by one, or of all.
  const std::int64_t gone = options.data.keeps_gradient_shards()
                                ? activations.kept / static_cast<std::int64_t>(blocks.size())
                                : activations.kept;
  data.unit_gradients += std::max<std::int64_t>(0, data.converted - gone);
  return {.data = data,
          .activations = activations,
          .buffers = model.table_values * table_size + microbatch.rows() * kTokenBytes};
}

}  // namespace dtrain::parallel
