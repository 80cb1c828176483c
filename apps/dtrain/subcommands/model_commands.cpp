// generate, evaluate, verify, plan, doctor, checkpoint export and import: the checks that need no
// LibTorch, before libdtrain.so runs the command.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <system_error>

#include "commands.h"
#include "dtrain/base/error.h"
#include "dtrain/base/io/input_file.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/base/log.h"
#include "dtrain/checkpoint/format/safetensors.h"
#include "dtrain/checkpoint/format/weight_file.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/checkpoint/store/reader.h"
#include "dtrain/config/hugging_face/config_file.h"
#include "dtrain/config/hugging_face/unsupported_models.h"
#include "dtrain/config/input/assign.h"
#include "dtrain/config/saved_run.h"
#include "dtrain/config/schema/schema.h"
#include "dtrain/data/split.h"
#include "dtrain/data/tokenizer/stored_tokenizer.h"
#include "provenance.h"
#include "runtime_library.h"
#include "settings/configure.h"
#include "settings/inherited_run.h"
#include "settings/model_path.h"

namespace dtrain::app {
namespace {

namespace fs = std::filesystem;
using base::ErrorKind;
using base::fail;
using base::path_exists;

// Rejects names of other formats: readers such as torch.load choose the format by the name.
void require_safetensors_name(const std::string& file) {
  constexpr std::string_view kOther[] = {".pt",  ".pth",  ".bin", ".ckpt", ".pkl",
                                         ".npz", ".gguf", ".h5",  ".onnx", ".msgpack"};
  const std::string suffix = fs::path(file).extension().string();
  if (std::ranges::count(kOther, suffix) == 0) return;
  fail(ErrorKind::usage,
       "'{}': export writes the safetensors format, which programs that read {} files cannot load: "
       "name it {}",
       file, suffix, fs::path(file).replace_extension(".safetensors").string());
}

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Copies a file of the tokenizer in the run's folder next to the exported model.
void copy_tokenizer_file(const fs::path& from, const std::string& content, const fs::path& to,
                         const std::string& model) {
  std::error_code error;
  if (fs::equivalent(from, to, error)) return;
  if (path_exists(to.string())) {
    if (content_of(to) == content) return;
    base::log_warning(
        "did not overwrite {}, which differs from the run's tokenizer {}; to generate text from "
        "{}, copy the run's tokenizer there",
        to.string(), from.string(), model);
    return;
  }
  fs::copy_file(from, to, error);
  if (error) {
    fail(ErrorKind::checkpoint,
         "cannot write the tokenizer {} ({}); dtrain generate needs it: copy {} there", to.string(),
         error.message(), from.string());
  }
  base::log_info("also wrote {}, which generate needs next to the model", to.string());
}

// Copies the tokenizer from the run folder next to the exported model, where generate expects it.
void copy_tokenizer(const std::string& checkpoint, const std::string& file) {
  const std::string run = checkpoint::store::run_of_checkpoint(checkpoint);
  const auto stored = run.empty() ? std::nullopt : data::tokenizer_in(run);
  if (!stored) return;
  for (const auto& [name, content] : data::files_of_tokenizer(stored->model)) {
    const fs::path from = fs::path(run) / name;
    if (path_exists(from.string())) {
      copy_tokenizer_file(from, content_of(from), fs::path(file).parent_path() / name, file);
    }
  }
}

void refuse_checkpoint_folder(const std::string& file) {
  const fs::path folder = fs::path(file).parent_path();
  if (!path_exists((folder / checkpoint::store::kManifestName).string())) return;
  fail(ErrorKind::usage, "'{}' is in a checkpoint folder: name a file elsewhere", file);
}

void check_export_file(const config::ExportConfig& wanted) {
  require_safetensors_name(wanted.file);
  if (base::is_folder(wanted.file)) {
    fail(ErrorKind::usage,
         "'{}' is a folder: name a file, such as {}, or a new folder with --format huggingface",
         wanted.file, (fs::path(wanted.file) / "model.safetensors").string());
  }
  if (std::error_code error; path_exists(wanted.file) && !fs::is_regular_file(wanted.file, error)) {
    fail(ErrorKind::usage, "'{}' is not a regular file and is not replaced; name another file",
         wanted.file);
  }
  if (path_exists(wanted.file) && !wanted.overwrite) {
    fail(ErrorKind::usage, "'{}' exists: name another file, or give --overwrite to replace it",
         wanted.file);
  }
  refuse_checkpoint_folder(wanted.file);
}

void check_export_folder(const config::ExportConfig& wanted) {
  if (path_exists(wanted.file)) {
    fail(ErrorKind::usage, "'{}' exists: name another folder", wanted.file);
  }
  if (fs::path(wanted.file).extension() == ".safetensors") {
    fail(ErrorKind::usage,
         "'{}': --format huggingface writes a folder; name one, or leave the flag out to write "
         "this file",
         wanted.file);
  }
  // Without a trailing slash, after which the folder would be its own parent.
  refuse_checkpoint_folder((fs::path(wanted.file) / "").parent_path().string());
}

// Refuses models that Hugging Face's format lacks.
void check_has_hugging_face(const checkpoint::format::Manifest& manifest) {
  (void)config::hugging_face_config(config::from_json(manifest.config).model, {});
}

}  // namespace

int run_generate(const config::CommandLine& command_line) {
  const auto configured = configure(command_line);
  if (!configured) return 0;
  config::Config config = configured->config;
  require_from(config.generate.from);
  config.generate.from = model_path(config.generate.from);
  require_model_file(config.generate.from);
  warn(config::Command::generate, *configured);
  return RuntimeLibrary::open().run({config::Command::generate, config});
}

int run_evaluate(const config::CommandLine& command_line) {
  auto configured = configure(command_line);
  if (!configured) return 0;
  config::Config& config = configured->config;
  require_from(config.generate.from);
  if (config.data.train.empty()) {
    fail(ErrorKind::usage, "--data is missing: name a token file or a text");
  }
  // The evaluated data counts as validation data in checks of settings.
  if (config.data.val_fraction == 0) config.data.validation = config.data.train;
  warn(config::Command::evaluate, *configured);
  config::Config requested = configured->loaded.config;  // resolved with the model in libdtrain.so
  requested.machine.device = config.machine.device;
  requested.machine.threads = config.machine.threads;
  if (!configured->is_quiet && run_of_model(requested.generate.from).empty()) {
    base::log_info("{} is not in a run folder: evaluating with --seq-len {} and --dtype {}",
                   requested.generate.from, config.data.seq_len,
                   config::value_text(*config::find_key("machine.dtype"), config));
  }
  require_model_file(requested.generate.from);
  return RuntimeLibrary::open().run({config::Command::evaluate, requested});
}

int run_verify(const config::CommandLine& command_line) {
  const auto configured = configure(command_line);
  if (!configured) return 0;
  const config::VerifyConfig& verify = configured->config.verify;
  if (verify.golden.empty() && verify.hugging_face.empty()) {
    fail(ErrorKind::usage,
         "--golden or --huggingface is missing: name a fixture, as in tests/golden or tests/hf");
  }
  const bool is_golden = verify.hugging_face.empty();
  open_for(is_golden ? "--golden" : "--expected", [&] {
    (void)checkpoint::format::SafetensorsFile::open(is_golden ? verify.golden : verify.expected);
  });
  if (!verify.trajectory.empty()) {
    (void)base::InputFile::open(
        verify.trajectory,
        {.kind = ErrorKind::data, .what = "trajectory file", .advice = "check --trajectory"});
  }
  warn(config::Command::verify, *configured);
  return RuntimeLibrary::open(configured->config.layout)
      .run({config::Command::verify, configured->config});
}

int run_plan(const config::CommandLine& command_line) {
  config::CommandLine job = command_line;
  (void)add_demo_defaults(job);  // the training command of the plan would add them
  const auto configured = configure(job);
  if (!configured) return 0;
  const config::Config& asked = configured->loaded.config;
  const std::string missing = data::missing_file(data::split_options(asked));
  if (!missing.empty() && !configured->is_quiet) {
    base::log_info(
        "'{}' does not exist on this machine: the plan uses --vocab {} and omits the time of a "
        "pass over the data",
        missing, asked.model.vocab);
  }
  return RuntimeLibrary::open().run({config::Command::plan, asked});
}

int run_doctor(const config::CommandLine& command_line) {
  config::CommandLine job = command_line;
  (void)add_demo_defaults(job);
  const auto configured = configure(job);
  if (!configured) return 0;
  const config::Config& config = configured->config;
  if (!config.data.train.empty()) (void)data::open_split(data::split_options(config));
  warn(config::Command::doctor, *configured);
  return RuntimeLibrary::open(config.layout)
      .run({config::Command::doctor,
            config,
            {.requested = configured->loaded.config, .provenance = doctor_record()}});
}

int export_checkpoint(const config::CommandLine& command_line) {
  constexpr auto kCommand = config::Command::export_checkpoint;
  const auto configured = configure(command_line);
  if (!configured) return 0;
  const config::ExportConfig& wanted = configured->config.exporting;
  if (wanted.checkpoint.empty() || wanted.file.empty()) {
    fail(ErrorKind::usage,
         "dtrain checkpoint export needs PATH FILE: a checkpoint, and the file to write");
  }
  const bool is_folder = wanted.format == config::ExportFormat::huggingface;
  if (is_folder) {
    check_export_folder(wanted);
  } else {
    check_export_file(wanted);
  }
  const auto checkpoints = checkpoint::store::checkpoints_at(wanted.checkpoint);
  const std::string& path = checkpoints.front();
  checkpoint::format::Manifest manifest;
  checkpoint::store::with_fallback_hint(checkpoints, [&] {
    manifest = checkpoint::store::read_manifest(path);  // refuses what is no checkpoint
  });
  if (is_folder) check_has_hugging_face(manifest);
  warn(kCommand, *configured);
  const int status = RuntimeLibrary::open().run({kCommand, configured->config});
  if (status == 0 && configured->env.rank == 0 && !is_folder) copy_tokenizer(path, wanted.file);
  return status;
}

int import_checkpoint(const config::CommandLine& command_line) {
  constexpr auto kCommand = config::Command::import_checkpoint;
  auto configured = configure(command_line);
  if (!configured) return 0;
  config::ImportConfig& wanted = configured->config.importing;
  if (wanted.file.empty() || wanted.checkpoint.empty()) {
    fail(ErrorKind::usage,
         "dtrain checkpoint import needs FILE FOLDER: a model file, and the checkpoint to write");
  }
  if (path_exists(wanted.checkpoint)) {
    fail(ErrorKind::usage, "'{}' exists: name another folder for the checkpoint",
         wanted.checkpoint);
  }
  if (const std::string advice = config::download_advice(wanted.file); !advice.empty()) {
    fail(ErrorKind::checkpoint, "'{}' does not exist; give a model file or a folder{}", wanted.file,
         advice);
  }
  checkpoint::store::refuse_piece(wanted.file);
  const std::string inside = checkpoint::store::model_file_in(wanted.file);
  if (inside.empty()) checkpoint::store::refuse_missing_weights(wanted.file);
  if (!inside.empty()) wanted.file = inside;
  (void)checkpoint::format::WeightFile::open(wanted.file);  // throws if it is not a model file
  warn(kCommand, *configured);
  return RuntimeLibrary::open().run({kCommand, configured->config});
}

}  // namespace dtrain::app
