#include "dtrain/commands/internal/hugging_face_export.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/io/file_system.h"
#include "dtrain/base/log.h"
#include "dtrain/checkpoint/hugging_face_folder.h"
#include "dtrain/checkpoint/model_file.h"
#include "dtrain/checkpoint/state.h"
#include "dtrain/checkpoint/store/kept_files.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/config/family.h"
#include "dtrain/config/hugging_face/config_file.h"
#include "dtrain/data/tokenizer/stored_tokenizer.h"
#include "dtrain/parallel/precision.h"
#include "dtrain/train/model_file.h"

namespace dtrain::commands {
namespace {

namespace fs = std::filesystem;
namespace store = checkpoint::store;
using base::ErrorKind;

constexpr std::string_view kConfig = "config.json";
constexpr std::string_view kGenerationConfig = "generation_config.json";

config::Dtype dtype_named_as(at::ScalarType dtype) {
  for (const config::Choice& choice : config::kDtypes) {
    const auto each = static_cast<config::Dtype>(choice.value);
    if (parallel::dtype_of(each) == dtype) return each;
  }
  base::fail(ErrorKind::internal, "no setting for dtype {}", c10::toString(dtype));
}

// The files of a run folder that belong to its weights.
struct Companions {
  // The files that the run keeps for its exports.
  std::vector<store::KeptFile> kept = {};
  // The tokenizer of the run's data, if it has files.
  std::optional<data::StoredTokenizer> tokenizer = {};
  // The id of the token between the data's documents.
  std::optional<std::uint32_t> end_token = {};
};

// run: empty if the checkpoint is in no run folder.
Companions companions_of(const std::string& run) {
  if (run.empty()) return {};
  const std::string folder = store::kept_files_folder(run);
  Companions found{.kept = store::read_kept_files(folder), .tokenizer = data::tokenizer_in(run)};
  if (!found.tokenizer) return found;
  found.end_token = data::open_tokenizer(*found.tokenizer)->end_of_document();
  if (found.kept.empty()) return found;
  const auto original = data::tokenizer_in(folder, data::kind_of_model(found.tokenizer->model));
  // Data without tokens between documents may come from the folder's tokenizer, whatever its
  // eos_token.
  const bool is_original =
      original &&
      (original->model == found.tokenizer->model ||
       (!found.end_token && data::identity_of(*original) == data::identity_of(*found.tokenizer)));
  if (is_original) return found;
  base::log_warning(
      "the run's data has the tokenizer {}, or another --document-end, than the folder that the "
      "run started from: the export leaves out that folder's token ids and tokenizer, which are "
      "in {}",
      found.tokenizer->path, folder);
  found.kept.clear();
  return found;
}

// tokenizer: its identity; empty if unknown.
void write_weights(store::Reader& reader, const HuggingFaceExport& exported,
                   const std::string& folder, const std::string& tokenizer) {
  checkpoint::ReaderSource source(reader);
  const auto read = [&](const param::ParameterSpec& spec) {
    at::Tensor values = at::empty(spec.shape, at::TensorOptions().dtype(exported.dtype));
    const checkpoint::Piece piece{.name = checkpoint::kWeightPrefix + spec.name,
                                  .global_shape = spec.shape,
                                  .box = checkpoint::format::whole(spec.shape),
                                  .tensor = values};
    source.read(piece);
    checkpoint::check_finite({piece}, reader.path());
    return values;
  };
  checkpoint::write_hugging_face_weights(folder, exported.model.parameters,
                                         {.dtype = exported.dtype,
                                          .max_file_bytes = exported.max_file_bytes,
                                          .metadata = train::tokenizer_metadata(tokenizer)},
                                         read);
}

void write_folder(store::Reader& reader, const HuggingFaceExport& exported,
                  const std::string& folder) {
  const auto write = [&](std::string_view name, std::string_view text) {
    base::write_atomically((fs::path(folder) / name).string(), ErrorKind::checkpoint, text);
  };
  const std::string run = store::run_of_checkpoint(reader.path());
  const Companions companions = companions_of(run);
  config::ExportedWeights weights{.dtype = dtype_named_as(exported.dtype),
                                  .end_token = companions.end_token};
  std::string identity;
  if (const auto& tokenizer = companions.tokenizer) {
    identity = data::identity_of(*tokenizer);
    if (companions.kept.empty()) {
      for (const auto& [name, content] : data::files_of_tokenizer(tokenizer->model)) {
        write(name, content);
      }
    }
  }
  if (store::find_kept_file(companions.kept, kConfig) != nullptr) {
    weights.token_ids_from = store::kept_files_folder(run);
  }
  for (const store::KeptFile& file : companions.kept) {
    if (file.name != kConfig) write(file.name, file.content);
  }
  if (store::find_kept_file(companions.kept, kGenerationConfig) == nullptr) {
    write(kGenerationConfig, config::hugging_face_generation_config(weights));
  }
  write(kConfig, config::hugging_face_config(exported.settings, weights));
  for (const config::HuggingFaceFile& file :
       config::family_of(exported.settings).hugging_face.files) {
    write(file.name, file.content);
  }
  write_weights(reader, exported, folder, identity);
}

}  // namespace

void export_hugging_face(store::Reader& reader, const HuggingFaceExport& exported) {
  base::Disk disk(ErrorKind::checkpoint);
  const std::string temporary = fmt::format("{}.tmp-{}", exported.folder, store::new_start_id());
  disk.make_folder(temporary);
  try {
    write_folder(reader, exported, temporary);
    disk.sync_folder(temporary);
    disk.rename(temporary, exported.folder);
    disk.sync_folder(base::parent_folder(exported.folder));
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw;
  }
}

}  // namespace dtrain::commands
