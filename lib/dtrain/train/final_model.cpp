#include "dtrain/train/final_model.h"

#include <ATen/core/grad_mode.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/storage_error.h"
#include "dtrain/checkpoint/model_file.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/train/model_description.h"
#include "dtrain/train/model_tokenizer.h"

namespace dtrain::train {

namespace {

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  (void)base::with_patience(folder.string(), [&] {
    std::filesystem::create_directories(folder, error);
    errno = error.value();
    return error ? -1 : 0;
  });
  if (error) {
    base::fail_on_storage(
        base::ErrorKind::checkpoint, error.value(),
        fmt::format("{}: cannot be created: {}", folder.string(), error.message()));
  }
}

// Returns why rank 0 must try again: what it has written is given up.
std::optional<base::StorageError> try_to_write(parallel::StepEngine& engine,
                                               comm::ProcessGroup& world, const FinalModel& final) {
  const std::vector<checkpoint::NamedTensor> buffers = exported_buffers(final.model);
  std::optional<checkpoint::ModelFileWriter> writer;  // rank 0's
  std::optional<base::StorageError> failure;          // likewise
  // A disk that is slow, or full in the middle of a gather, must not look like a rank that hangs.
  const auto write = [&](const std::function<void()>& task) {
    comm::run_long_on_leader(world, "writing " + final.path, [&] {
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
    final.check();
    make_folder(std::filesystem::path(final.path).parent_path());
    checkpoint::format::Metadata metadata = tokenizer_metadata(final.tokenizer);
    metadata.emplace(kModelKey, describe(final.settings));
    writer.emplace(final.path, final.model.parameters, engine.precision().master, buffers,
                   metadata);
  });
  engine.visit_parameters([&](param::ParameterId id, const at::Tensor& values) {
    const at::Tensor on_host = values.cpu();  // in this thread, whose streams made them
    write([&] { writer->write(id, on_host); });
  });
  write([&] {
    final.check();
    writer->commit();
  });
  return failure;
}

}  // namespace

void write_final_model(parallel::StepEngine& engine, comm::ProcessGroup& world,
                       const FinalModel& final) {
  base::StorageRetry retry;
  for (bool is_over = false; !is_over;) {
    const auto failure = try_to_write(engine, world, final);
    is_over = comm::leader_text(world, "writing the final model", [&] {
                if (failure && !retry.again(*failure)) throw *failure;
                return std::string(failure ? "again" : "");
              }).empty();
  }
}

}  // namespace dtrain::train
