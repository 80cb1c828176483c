#include "dtrain/commands/opened_model.h"

#include <filesystem>

#include "dtrain/base/error.h"
#include "dtrain/base/log.h"
#include "dtrain/base/path_kind.h"
#include "dtrain/checkpoint/model_file.h"
#include "dtrain/checkpoint/store/locate.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/commands/checkpoint_weights.h"
#include "dtrain/model/registry.h"
#include "dtrain/train/model_description.h"
#include "dtrain/train/model_tokenizer.h"

namespace dtrain::commands {
namespace {

using checkpoint::format::SafetensorsFile;
namespace fs = std::filesystem;
namespace store = checkpoint::store;

// Empty if the file is no run's final model, or the run has no checkpoint.
std::string newest_checkpoint_beside(const std::string& file) {
  const fs::path whole = base::resolved_path(file);
  const fs::path run = whole.parent_path().parent_path();
  if (whole != store::final_model(run.string())) return {};
  const std::string folder = store::checkpoints_folder(run.string());
  const std::vector<std::int64_t> steps = store::list_steps(folder);
  return steps.empty() ? "" : (fs::path(folder) / store::checkpoint_name(steps.front())).string();
}

param::Arena read_model(const SafetensorsFile& file, const model::Model& model,
                        const at::TensorOptions& options) {
  try {
    return checkpoint::read_model_file(file, model.parameters, train::exported_buffers(model),
                                       options);
  } catch (const base::Error& error) {
    const std::string newest = newest_checkpoint_beside(file.path());
    if (error.kind() != base::ErrorKind::checkpoint || newest.empty()) throw;
    base::fail(error.kind(), "{}; the run's newest checkpoint: --from {}", error.what(), newest);
  }
}

OpenedModel open_model_file(const std::string& path, const model::UserHints& told) {
  const auto file = std::make_shared<SafetensorsFile>(SafetensorsFile::open(path));
  const config::ModelConfig settings = train::model_of(*file, told);
  return {.settings = settings,
          .path = path,
          .open_tokenizer =
              [file, vocab = settings.vocab] { return train::tokenizer_of_model(*file, vocab); },
          .read_weights =
              [file](const model::Model& model, const at::TensorOptions& options) {
                return read_model(*file, model, options);
              }};
}

// path: a checkpoint, or a run folder for its latest complete checkpoint.
OpenedModel open_checkpoint(const std::string& path, const model::UserHints& told) {
  const bool is_checkpoint = store::checkpoints_at(path).front() == path;
  const auto reader = std::make_shared<store::Reader>(is_checkpoint ? open_weights(path)
                                                                    : open_newest_weights(path));
  base::log_info("using the weights of step {}: {}", reader->manifest().step, reader->path());
  const config::ModelConfig settings = model_of(*reader);
  model::check_told(reader->path(), told.levels_flag, told.levels, settings.levels);
  return {.settings = settings,
          .path = reader->path(),
          .open_tokenizer =
              [path = reader->path(), vocab = settings.vocab] {
                return train::tokenizer_of_checkpoint(path, vocab);
              },
          .read_weights =
              [reader](const model::Model& model, const at::TensorOptions& options) {
                return read_weights(*reader, model, options);
              }};
}

}  // namespace

OpenedModel open_model(const config::GenerateConfig& generate) {
  const model::UserHints told{.levels = generate.from_levels, .levels_flag = "--from-levels"};
  return base::is_folder(generate.from) ? open_checkpoint(generate.from, told)
                                        : open_model_file(generate.from, told);
}

}  // namespace dtrain::commands
