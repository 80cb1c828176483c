#include "dtrain/train/model_file.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/io/file_system.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/base/io/storage_error.h"
#include "dtrain/base/log.h"
#include "dtrain/checkpoint/model_file.h"
#include "dtrain/checkpoint/state.h"
#include "dtrain/checkpoint/store/described_model.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/config/family.h"
#include "dtrain/config/saved_run.h"
#include "dtrain/data/tokenizer/stored_tokenizer.h"
#include "dtrain/model/family.h"
#include "dtrain/train/internal/train_context.h"

namespace dtrain::train {
namespace {

namespace fs = std::filesystem;
using base::ErrorKind;
using checkpoint::format::TensorView;
using checkpoint::format::WeightFile;
using checkpoint::store::kTokenizerKey;
using config::ModelConfig;

constexpr std::int64_t kByteVocabulary = 256;

// Returns the storage error after which rank 0 must try again; it discards the file then.
std::optional<base::StorageError> try_to_write(const TrainContext& context,
                                               const std::string& path) {
  const std::vector<checkpoint::NamedTensor> buffers = exported_buffers(context.model);
  std::optional<checkpoint::ModelFileWriter> writer;  // rank 0's
  std::optional<base::StorageError> failure;          // likewise
  // A slow or full disk in the middle of a gather must not look like a hanging rank.
  const auto write = [&](const std::function<void()>& task) {
    comm::run_long_on_leader(context.world, "writing " + path, [&] {
      if (failure) return;
      const at::NoGradGuard no_grad;
      try {
        task();
      } catch (const base::StorageError& error) {
        failure = error;
        writer.reset();
      }
    });
  };
  write([&] {
    context.check_folder();
    base::Disk(ErrorKind::checkpoint).make_folder(base::parent_folder(path));
    checkpoint::format::Metadata metadata =
        tokenizer_metadata(context.split.train.tokenized_file().tokenizer());
    metadata.emplace(kModelKey, config::model_to_json(context.config.model));
    writer.emplace(path, context.model.parameters, context.engine.precision().master, buffers,
                   metadata);
  });
  context.engine.whole_model().visit_parameters(
      [&](param::ParameterId id, const at::Tensor& values) {
        const at::Tensor on_host = values.cpu();  // in this thread, whose streams computed them
        write([&] { writer->write(id, on_host); });
      });
  write([&] {
    context.check_folder();
    writer->commit();
  });
  return failure;
}

model::TensorShapes shapes_in(const WeightFile& file) {
  const bool is_storage = file.has_storage_shapes();
  return tensor_shapes(file.path(), file.tensors(), is_storage ? checkpoint::kWeightPrefix : "",
                       is_storage);
}

// Names the config.json that is missing beside a file whose tensors do not determine the settings of
// its model; empty if the settings are known.
std::string missing_description(const WeightFile& file) {
  if (checkpoint::store::described_model(file)) return {};
  const std::string family(model::recognised_family(shapes_in(file)));
  if (family.empty() || !config::family_of({.name = family}).hugging_face.needs_config) return {};
  const fs::path config = fs::path(file.path()).parent_path() / "config.json";
  return fmt::format(
      "'{}' {}, so the settings of the {} model in '{}' are unknown; put the model's config.json "
      "there",
      config.string(), base::path_exists(config) ? "has no model_type" : "is missing", family,
      file.path());
}

// Opens the tokenizer of a model file, whose vocabulary may be larger.
std::shared_ptr<const data::Tokenizer> open_stored(const data::StoredTokenizer& stored,
                                                   const WeightFile& file, std::int64_t vocab) {
  auto tokenizer = data::open_tokenizer(stored);
  if (tokenizer->vocab() > vocab) {
    base::fail(ErrorKind::checkpoint,
               "model file '{}' has a vocabulary of {}, but its tokenizer '{}' has {}; train the "
               "model on data from dtrain data prepare",
               file.path(), vocab, stored.path, tokenizer->vocab());
  }
  return tokenizer;
}

// The tokenizer of a model file that names none, as in Hugging Face's folders.
std::shared_ptr<const data::Tokenizer> unnamed_tokenizer(const WeightFile& file,
                                                         std::int64_t vocab) {
  const std::string folder = fs::absolute(file.path()).parent_path().string();
  const auto beside = data::tokenizer_in(folder, data::TokenizerKind::hugging_face);
  if (beside) return open_stored(*beside, file, vocab);
  if (vocab == kByteVocabulary) return data::byte_tokenizer();
  base::fail(
      ErrorKind::checkpoint,
      "model file '{}' has a vocabulary of {} and does not name its tokenizer; generating "
      "text needs a byte model, with a vocabulary of {}, or a tokenizer.json beside the file",
      file.path(), vocab, kByteVocabulary);
}

// Returns whether a tokenizer lies in the folder of the weights; warns if it is another one than
// that of the data. A folder may hold one tokenizer as tokenizer.model and as tokenizer.json: the
// former counts only for data of its kind.
bool has_tokenizer_beside(const ModelAndData& used) {
  constexpr auto kSentencePiece = data::TokenizerKind::sentencepiece;
  const std::string folder =
      base::is_folder(used.weights) ? used.weights : base::parent_folder(used.weights);
  std::optional<data::StoredTokenizer> beside;
  if (data::kind_of_identity(used.tokenizer) == kSentencePiece) {
    beside = data::tokenizer_in(folder, kSentencePiece);
  }
  if (!beside) beside = data::tokenizer_in(folder, data::TokenizerKind::hugging_face);
  if (!beside) return false;
  if (const std::string own = data::identity_of(*beside); own != used.tokenizer) {
    base::log_warning(
        "{}: '{}' is {}, but {} has tokens of {}; prepare the data with dtrain data prepare "
        "--tokenizer {}",
        used.flag, beside->path, own, used.data, used.tokenizer, beside->path);
  }
  return true;
}

}  // namespace

std::vector<checkpoint::NamedTensor> exported_buffers(const model::Model& model) {
  std::vector<checkpoint::NamedTensor> buffers;
  for (const model::ExportedBuffer& buffer : model.buffers) {
    buffers.push_back({buffer.name, buffer.value});
  }
  return buffers;
}

checkpoint::Constants constants_of(const model::Model& model) {
  return {
      .buffers = exported_buffers(model), .unused = model.unused_tensors, .aliases = model.aliases};
}

model::TensorShapes tensor_shapes(const std::string& path, std::span<const TensorView> tensors,
                                  const std::string& prefix, bool is_storage) {
  model::TensorShapes found{.path = path, .prefix = prefix, .is_storage = is_storage};
  for (const TensorView& tensor : tensors) {
    if (!tensor.name.starts_with(prefix)) continue;
    found.shapes.emplace(tensor.name.substr(prefix.size()), tensor.shape);
  }
  return found;
}

ModelConfig recognised_model(const model::TensorShapes& tensors, const model::UserHints& hints) {
  // Round trip through text, since parsing checks the ranges.
  return checkpoint::store::parse_description(
      config::model_to_json(model::recognise(tensors, hints)),
      fmt::format("model file '{}': bad shapes", tensors.path));
}

std::string check_fit(const WeightFile& file, const model::Model& model, std::string_view family) {
  try {
    return checkpoint::check_model_file(file, model.parameters, constants_of(model));
  } catch (const base::FileError&) {
    throw;  // the storage failed, whatever the settings are
  } catch (const base::Error& error) {
    const std::string missing = missing_description(file);
    if (error.kind() != ErrorKind::checkpoint || missing.empty()) throw;
    const bool is_of_family = model::recognised_family(shapes_in(file)) == family;
    base::fail(ErrorKind::checkpoint, "{}{}",
               is_of_family ? fmt::format("{}; ", error.what()) : std::string(), missing);
  }
}

ModelConfig model_of(const WeightFile& file, const model::UserHints& hints) {
  ModelConfig model;
  file.explain_errors([&] {
    const auto described = checkpoint::store::described_model(file);
    const std::string missing = described ? std::string() : missing_description(file);
    if (!missing.empty()) base::fail(ErrorKind::checkpoint, "{}", missing);
    model = described ? *described : recognised_model(shapes_in(file), hints);
  });
  model::check_flag_agrees(file.path(), hints.layers_flag, hints.layers, model.layers);
  model::family_of(model).check_own(model, hints, file.path());
  return model;
}

std::shared_ptr<const data::Tokenizer> tokenizer_of_model(const WeightFile& file,
                                                          std::int64_t vocab) {
  const auto found = file.metadata().find(kTokenizerKey);
  if (found == file.metadata().end()) return unnamed_tokenizer(file, vocab);
  const data::TokenizerKind kind = data::kind_of_identity(found->second);
  const auto stored = data::tokenizer_near(file.path(), kind);
  if (!stored) {
    base::fail(
        ErrorKind::checkpoint,
        "model file '{}' was trained with the tokenizer {}, and no {} is beside it or in the "
        "folder above; copy it there from the run's folder",
        file.path(), found->second, data::tokenizer_file_name(kind));
  }
  const std::string identity = data::identity_of(*stored);
  if (identity != found->second) {
    base::fail(ErrorKind::checkpoint,
               "tokenizer '{}' does not belong to the model file '{}': it is {}, expected {}; copy "
               "the tokenizer of the model's run there",
               stored->path, file.path(), identity, found->second);
  }
  return open_stored(*stored, file, vocab);
}

std::shared_ptr<const data::Tokenizer> tokenizer_of_checkpoint(const std::string& checkpoint,
                                                               std::int64_t vocab) {
  const auto stored = data::tokenizer_near(checkpoint);
  if (stored) {
    auto tokenizer = data::open_tokenizer(*stored);
    if (tokenizer->vocab() <= vocab) return tokenizer;
    if (vocab != kByteVocabulary) {
      base::fail(ErrorKind::checkpoint,
                 "checkpoint '{}' has a vocabulary of {}, but '{}' has {}: it is another run's "
                 "tokenizer; copy the tokenizer of the checkpoint's run there",
                 checkpoint, vocab, stored->path, tokenizer->vocab());
    }
  }
  if (vocab == kByteVocabulary) return data::byte_tokenizer();
  base::fail(ErrorKind::checkpoint,
             "checkpoint '{}' has a vocabulary of {}, and neither tokenizer.model nor "
             "tokenizer.json is beside it or in its run's folder: copy the tokenizer of its run "
             "there",
             checkpoint, vocab);
}

std::string saved_tokenizer(const std::string& model_file_or_checkpoint) {
  std::error_code error;
  if (fs::is_directory(model_file_or_checkpoint, error)) {
    const std::string run = checkpoint::store::run_of_checkpoint(model_file_or_checkpoint);
    const auto stored = run.empty() ? std::nullopt : data::tokenizer_in(run);
    return stored ? data::identity_of(*stored) : std::string();
  }
  const auto file = WeightFile::open(model_file_or_checkpoint);
  const auto found = file.metadata().find(kTokenizerKey);
  return found == file.metadata().end() ? std::string() : found->second;
}

std::string check_tokenizer_of_data(const ModelAndData& used) {
  if (used.tokenizer == data::identity_of(data::TokenizerKind::unknown, {})) return {};
  std::string own = saved_tokenizer(used.weights);
  if (own.empty()) {
    if (has_tokenizer_beside(used) || used.vocab != kByteVocabulary) return {};
    own = data::identity_of(data::TokenizerKind::bytes, {});  // byte models record no tokenizer
  }
  if (own == used.tokenizer) return {};
  return fmt::format(
      "{}: the model of {} was trained on tokens of {}, {} has those of {}; prepare the data with "
      "the model's tokenizer",
      used.flag, used.weights, own, used.data, used.tokenizer);
}

checkpoint::format::Metadata tokenizer_metadata(const std::string& identity) {
  const std::string bytes = data::identity_of(data::TokenizerKind::bytes, {});
  const std::string unknown = data::identity_of(data::TokenizerKind::unknown, {});
  if (identity.empty() || identity == bytes || identity == unknown) return {};
  return {{kTokenizerKey, identity}};
}

void write_final_model(const TrainContext& context) {
  const std::string path = checkpoint::store::final_model(context.config.run.dir);
  base::StorageRetry retry;
  for (bool is_over = false; !is_over;) {
    const auto failure = try_to_write(context, path);
    is_over = comm::leader_text(context.world, "writing the final model", [&] {
                if (failure && !retry.should_retry(*failure)) throw *failure;
                return std::string(failure ? "again" : "");
              }).empty();
  }
}

}  // namespace dtrain::train
