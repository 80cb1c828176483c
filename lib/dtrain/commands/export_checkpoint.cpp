#include <fmt/format.h>

#include <string>

#include "dtrain/checkpoint/model_file.h"
#include "dtrain/checkpoint/store/locate.h"
#include "dtrain/commands/checkpoint_weights.h"
#include "dtrain/commands/commands.h"
#include "dtrain/model/registry.h"
#include "dtrain/parallel/precision.h"
#include "dtrain/train/model_description.h"
#include "dtrain/train/model_tokenizer.h"

namespace dtrain::commands {
namespace {

using checkpoint::kWeightPrefix;
namespace store = checkpoint::store;

at::ScalarType saved_dtype(const model::Model& model, const store::Reader& reader) {
  const auto* info = reader.find(kWeightPrefix + model.parameters.front().name);
  return info == nullptr ? at::kFloat : checkpoint::scalar_type_of(info->dtype);
}

}  // namespace

void export_checkpoint(const config::Config& config, const Output& output) {
  const config::ExportConfig& wanted = config.exporting;
  store::Reader reader = open_weights(store::checkpoints_at(wanted.checkpoint).front());
  const config::ModelConfig described = model_of(reader);
  const auto model = model::make_model(described, /*seq_len=*/1);
  const at::ScalarType dtype = wanted.dtype == config::Dtype::automatic
                                   ? saved_dtype(*model, reader)
                                   : parallel::dtype_of(wanted.dtype);
  const param::Arena arena = read_weights(reader, *model, dtype);
  checkpoint::format::Metadata metadata =
      train::tokenizer_metadata(train::saved_tokenizer(reader.path()));
  metadata.emplace(train::kModelKey, train::describe(described));
  checkpoint::write_model_file(wanted.file, model->parameters, arena,
                               train::exported_buffers(*model), metadata);
  output(fmt::format("{}: {} parameters of {}, step {}\n", wanted.file, model->num_elements(),
                     reader.path(), reader.manifest().step));
}

}  // namespace dtrain::commands
