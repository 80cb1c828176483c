#include "dtrain/commands/internal/hugging_face_export.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <system_error>

#include "dtrain/base/error.h"
#include "dtrain/base/io/file_system.h"
#include "dtrain/base/io/input_file.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/checkpoint/hugging_face_folder.h"
#include "dtrain/checkpoint/model_file.h"
#include "dtrain/checkpoint/state.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/config/family.h"
#include "dtrain/config/hugging_face/config_file.h"
#include "dtrain/data/tokenizer/tokenizer.h"
#include "dtrain/job/run_folder.h"
#include "dtrain/parallel/precision.h"
#include "dtrain/train/model_file.h"

namespace dtrain::commands {
namespace {

namespace fs = std::filesystem;
namespace store = checkpoint::store;
using base::ErrorKind;

constexpr base::FileRole kTokenizer{ErrorKind::checkpoint, "tokenizer", "check its permissions"};

config::Dtype dtype_named_as(at::ScalarType dtype) {
  for (const config::Choice& choice : config::kDtypes) {
    const auto each = static_cast<config::Dtype>(choice.value);
    if (parallel::dtype_of(each) == dtype) return each;
  }
  base::fail(ErrorKind::internal, "no setting for dtype {}", c10::toString(dtype));
}

// The content of the tokenizer.model in the checkpoint's run folder; nothing if there is none.
std::optional<std::string> tokenizer_of_run(const std::string& checkpoint) {
  const std::string run = store::run_of_checkpoint(checkpoint);
  const std::string path = run.empty() ? run : job::RunFolder::tokenizer_file(run);
  if (path.empty() || !base::path_exists(path)) return std::nullopt;
  return base::content_of(path, kTokenizer);
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
  config::ExportedWeights weights{.dtype = dtype_named_as(exported.dtype)};
  std::string identity;
  if (const auto tokenizer = tokenizer_of_run(reader.path())) {
    identity = data::identity_of(data::TokenizerKind::sentencepiece, *tokenizer);
    weights.end_token = data::open_tokenizer(*tokenizer, reader.path())->end_of_document();
    write(fs::path(job::RunFolder::tokenizer_file(folder)).filename().string(), *tokenizer);
  }
  write("config.json", config::hugging_face_config(exported.settings, weights));
  write("generation_config.json", config::hugging_face_generation_config(weights));
  for (const config::HuggingFaceFile& file :
       config::family_of(exported.settings).hugging_face->files) {
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
